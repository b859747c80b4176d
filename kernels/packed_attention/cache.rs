//! The keys and values of one sequence while it is decoded.

use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::Tensor;

#[cfg(feature = "cuda")]
use super::cuda;
use super::{CachedAttention, cached_attention, cpu};
use crate::cpu::{slice, tensor};
#[cfg(feature = "cuda")]
use crate::cuda::{into_tensor, primitive as on_device};
use crate::op::{joined, on_cpu, primitive};

/// Keys and values of all tokens so far, `[length, G·D]` each. A clone shares them until one of both grows.
#[derive(Debug, Clone, Default)]
pub struct KeyValueCache {
    seen: Option<Seen>,
}

/// On the CPU numbers that grow in place, because a copy for each token would cost as much as the weights of
/// a layer after a few hundred tokens.
#[derive(Debug, Clone)]
enum Seen {
    OnCpu {
        k: Arc<Vec<f32>>,
        v: Arc<Vec<f32>>,
        width: usize,
    },
    /// Keys and values in the first `length` rows, behind which there may be room for more: what is appended
    /// is written there, if no clone shares them.
    OnDevice {
        rows: Box<[Tensor<2>; 2]>,
        length: usize,
    },
}

impl KeyValueCache {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        match &self.seen {
            None => 0,
            Some(Seen::OnCpu { k, width, .. }) => k.len() / width,
            Some(Seen::OnDevice { length, .. }) => *length,
        }
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends keys and values `[n, G·D]` of new tokens.
    pub fn append(&mut self, k: Tensor<2>, v: Tensor<2>) {
        if on_cpu(&k) {
            let width = k.dims()[1];
            let (new_k, new_v) = (primitive(k), primitive(v));
            let seen = self.seen.get_or_insert_with(|| {
                let nothing = || Arc::new(Vec::new());
                Seen::OnCpu { k: nothing(), v: nothing(), width }
            });
            let Seen::OnCpu { k, v, .. } = seen else { unreachable!("{ONE_DEVICE}") };
            Arc::make_mut(k).extend_from_slice(slice(&new_k));
            Arc::make_mut(v).extend_from_slice(slice(&new_v));
        } else {
            let (past, length) = self.take_on_device();
            let fresh = k.dims()[0];
            let [past_k, past_v] = past;
            let rows = Box::new([appended(past_k, length, k), appended(past_v, length, v)]);
            self.seen = Some(Seen::OnDevice { rows, length: length + fresh });
        }
    }

    /// Leaves the cache empty and returns what it had: keys and values in the first `length` rows of each,
    /// and `length`.
    fn take_on_device(&mut self) -> ([Option<Tensor<2>>; 2], usize) {
        match self.seen.take() {
            None => ([None, None], 0),
            Some(Seen::OnDevice { rows, length }) => (rows.map(Some), length),
            Some(Seen::OnCpu { .. }) => unreachable!("{ONE_DEVICE}"),
        }
    }

    /// Continues several examples: appends to each cache so many rows of `k` and `v`, the first ones to the
    /// first cache, and computes attention of the same rows of `q` like
    /// [`attend_by_row`](Self::attend_by_row).
    pub fn continue_by_row(
        op: CachedAttention,
        caches: &mut [(usize, &mut Self)],
        [q, k, v]: [Tensor<2>; 3],
    ) -> Tensor<2> {
        #[cfg(feature = "cuda")]
        if !on_cpu(&k) && cuda::fits(op.dims) {
            return Self::continue_on_device(op, caches, [q, k, v]);
        }
        let mut first = 0;
        let mixed = caches.iter_mut().map(|(rows, cache)| {
            let [q, k, v] = [&q, &k, &v].map(|x| x.clone().narrow(0, first, *rows));
            first += *rows;
            cache.append(k, v);
            cache.attend_by_row(op, q)
        });
        joined(mixed.collect())
    }

    #[cfg(feature = "cuda")]
    fn continue_on_device(
        op: CachedAttention,
        caches: &mut [(usize, &mut Self)],
        [q, k, v]: [Tensor<2>; 3],
    ) -> Tensor<2> {
        let counts: Vec<usize> = caches.iter().map(|(rows, _)| *rows).collect();
        let past = caches.iter_mut().map(|(_, cache)| {
            let (rows, length) = cache.take_on_device();
            cuda::Cached { rows: rows.map(|rows| rows.map(on_device)), length }
        });
        let past: Vec<_> = past.collect();
        let lengths: Vec<usize> = past.iter().zip(&counts).map(|(past, fresh)| past.length + fresh).collect();
        let [keys, values] = cuda::appended_to_each(past, &counts, [k, v].map(on_device));
        let mixed = cuda::by_split(op, on_device(q), &counts, &lengths, [&keys, &values]);
        let rows = keys.into_iter().zip(values);
        for (((_, cache), (k, v)), length) in caches.iter_mut().zip(rows).zip(lengths) {
            let rows = Box::new([k, v].map(into_tensor));
            cache.seen = Some(Seen::OnDevice { rows, length });
        }
        into_tensor(mixed)
    }

    /// Forgets the tokens from `length` on.
    pub fn truncate(&mut self, length: usize) {
        match &mut self.seen {
            Some(Seen::OnCpu { k, v, width }) => {
                Arc::make_mut(k).truncate(length * *width);
                Arc::make_mut(v).truncate(length * *width);
            }
            Some(Seen::OnDevice { length: of_all, .. }) => *of_all = length.min(*of_all),
            None => {}
        }
    }

    /// Returns keys and values as tensors, `[length, G·D]` each; `None` without tokens.
    pub fn tensors(&self) -> Option<(Tensor<2>, Tensor<2>)> {
        Some(match self.seen.as_ref()? {
            Seen::OnCpu { k, v, .. } => {
                let [k, v] = [k, v].map(|x| tensor(x.to_vec(), self.len()));
                (Tensor::from_primitive::<Flex>(k), Tensor::from_primitive::<Flex>(v))
            }
            Seen::OnDevice { rows, length } => {
                let [k, v] = rows.each_ref().map(|x| x.clone().narrow(0, 0, *length));
                (k, v)
            }
        })
    }

    /// Computes attention of the queries `[n, N·D]` of the `n` newest tokens, each of which attends to the
    /// tokens up to its own. Blocks of queries are computed together, which is fast for many.
    ///
    /// # Panics
    /// When there are fewer tokens than queries.
    pub fn attend(&self, op: CachedAttention, q: Tensor<2>) -> Tensor<2> {
        let CachedAttention { dims, scale, sliding_window } = op;
        match self.seen.as_ref().expect(SOME_TOKEN) {
            Seen::OnCpu { k, v, .. } => {
                let n = q.dims()[0];
                let q = primitive(q);
                let mut out = vec![0.0; slice(&q).len()];
                cpu::forward_cached(dims, scale, slice(&q), k, v, self.len() - n, sliding_window, &mut out);
                Tensor::from_primitive::<Flex>(tensor(out, n))
            }
            Seen::OnDevice { rows, length } => {
                let [k, v] = rows.as_ref().clone();
                cached_attention(op, q, k, v, *length)
            }
        }
    }

    /// Like [`attend`](Self::attend), where the bits of a query's result depend on the query and the tokens
    /// up to its own alone, and not on the number of queries. On a device whose kernels do not take these
    /// heads, they may.
    ///
    /// # Panics
    /// The same as for [`attend`](Self::attend).
    pub fn attend_by_row(&self, op: CachedAttention, q: Tensor<2>) -> Tensor<2> {
        let CachedAttention { dims, scale, sliding_window } = op;
        match self.seen.as_ref().expect(SOME_TOKEN) {
            Seen::OnCpu { k, v, .. } => {
                let n = q.dims()[0];
                let q = primitive(q);
                let past = self.len() - n;
                let out = cpu::forward_by_row(dims, scale, slice(&q), k, v, past, sliding_window);
                Tensor::from_primitive::<Flex>(tensor(out, n))
            }
            #[cfg(feature = "cuda")]
            Seen::OnDevice { rows, length } if cuda::fits(dims) => {
                let [k, v] = rows.as_ref().clone().map(|rows| [on_device(rows)]);
                into_tensor(cuda::by_split(op, on_device(q.clone()), &[q.dims()[0]], &[*length], [&k, &v]))
            }
            Seen::OnDevice { .. } => self.attend(op, q),
        }
    }
}

/// Returns a tensor whose first rows are `length` ones of `past` and then the new ones.
fn appended(past: Option<Tensor<2>>, length: usize, new: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cuda")]
    if new.dims()[1].is_multiple_of(8) {
        return into_tensor(cuda::appended(past.map(on_device), length, on_device(new)));
    }
    match past {
        Some(past) => Tensor::cat(vec![past.narrow(0, 0, length), new], 0),
        None => new,
    }
}

const ONE_DEVICE: &str = "a cache stays on one device";
const SOME_TOKEN: &str = "the tokens of the queries are in the cache";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{distance, random};
    use crate::packed_attention::{Dims, PackedAttention, packed_attention};

    #[cfg(feature = "cuda")]
    #[test]
    fn cached_queries_on_device_agree_with_the_cpu_and_by_row_have_the_same_bits_together_and_alone() {
        let Some(device) = crate::testing::cuda_device() else { return };
        let dims = Dims { heads: 4, kv_heads: 2, head_dim: 16 };
        let rounded = |x: Tensor<2>| x.cast(burn::tensor::DType::BF16).cast(burn::tensor::DType::F32);
        let [q, k, v] = [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| rounded(random(seed, 300, heads * 16)));
        for sliding_window in [None, Some(150)] {
            let op = CachedAttention { dims, scale: 0.25, sliding_window };
            let rows = |x: &Tensor<2>, from: usize, count: usize| x.clone().narrow(0, from, count);
            let there = |x: Tensor<2>| x.to_device(&device);
            let here =
                |x: Tensor<2>| x.to_device(&burn::tensor::Device::flex()).cast(burn::tensor::DType::F32);
            let mut on_cpu = KeyValueCache::default();
            on_cpu.append(k.clone(), v.clone());
            let expected = on_cpu.attend(op, rows(&q, 290, 10));
            let mut cache = KeyValueCache::default();
            cache.append(there(rows(&k, 0, 290)), there(rows(&v, 0, 290)));
            let mut one_by_one = cache.clone();
            cache.append(there(rows(&k, 290, 10)), there(rows(&v, 290, 10)));
            assert!(distance(&here(cache.attend(op, there(rows(&q, 290, 10)))), &expected) < 1e-2);
            let together = here(cache.attend_by_row(op, there(rows(&q, 290, 10))));
            assert!(distance(&together, &expected) < 5e-3);
            for i in 0..10 {
                one_by_one.append(there(rows(&k, 290 + i, 1)), there(rows(&v, 290 + i, 1)));
                let alone = here(one_by_one.attend_by_row(op, there(rows(&q, 290 + i, 1))));
                assert_eq!(alone.into_data(), rows(&together, i, 1).into_data(), "query {i}");
            }
            cache.truncate(295);
            let alone = here(cache.attend_by_row(op, there(rows(&q, 294, 1))));
            assert_eq!(alone.into_data(), rows(&together, 4, 1).into_data());
            // What comes next takes the place of what was taken back.
            cache.append(there(rows(&k, 295, 5)), there(rows(&v, 295, 5)));
            let (keys, _) = cache.tensors().unwrap();
            assert_eq!(here(keys).into_data(), k.clone().into_data());
        }
    }

    #[test]
    fn examples_that_are_continued_together_on_devices_have_the_bits_that_they_have_alone() {
        let dims = Dims { heads: 4, kv_heads: 2, head_dim: 16 };
        let here = |x: Tensor<2>| {
            x.to_device(&burn::tensor::Device::flex()).cast(burn::tensor::DType::F32).into_data()
        };
        // More than a launch takes; some caches are empty, some have no room, and two share their rows.
        let counts = [1, 3, 1, 2, 1, 1, 4, 1, 2, 1];
        let lengths = [0, 130, 7, 0, 64, 63, 300, 1, 40, 40];
        for (device, sliding_window) in
            crate::check::devices().iter().flat_map(|device| [(device, None), (device, Some(100))])
        {
            let op = CachedAttention { dims, scale: 0.25, sliding_window };
            let there = |seed: u64, rows: usize, heads: usize| {
                random(seed, rows, heads * 16).cast(burn::tensor::DType::BF16).to_device(device)
            };
            let wide = |x: Tensor<2>| if on_cpu(&x) { x.cast(burn::tensor::DType::F32) } else { x };
            let mut caches: Vec<KeyValueCache> = Vec::new();
            for (i, length) in (0u64..).zip(lengths) {
                let mut cache = KeyValueCache::default();
                if length > 0 {
                    let [k, v] = [20, 40].map(|seed| wide(there(seed + i, length, 2)));
                    cache.append(k, v);
                }
                caches.push(cache);
            }
            caches[9] = caches[8].clone();
            let total = counts.iter().sum();
            let mut alone = caches.clone();
            // First the caches are shared with those alone, then each has its own rows.
            for step in [0, 100] {
                let all =
                    [(1, 4), (2, 2), (3, 2)].map(|(seed, heads)| wide(there(step + seed, total, heads)));
                let mut parts: Vec<(usize, &mut KeyValueCache)> =
                    counts.iter().copied().zip(&mut caches).collect();
                let together = KeyValueCache::continue_by_row(op, &mut parts, all.clone());
                let mut first = 0;
                for (i, (count, cache)) in counts.iter().zip(&mut alone).enumerate() {
                    let [q, k, v] = all.clone().map(|x| x.narrow(0, first, *count));
                    cache.append(k, v);
                    let expected = here(cache.attend_by_row(op, q));
                    assert_eq!(here(together.clone().narrow(0, first, *count)), expected, "example {i}");
                    first += count;
                }
            }
            for (i, (together, alone)) in caches.iter().zip(&alone).enumerate() {
                let of = |cache: &KeyValueCache| {
                    let (k, v) = cache.tensors().unwrap();
                    (cache.len(), here(k), here(v))
                };
                assert_eq!(of(together), of(alone), "example {i}");
            }
        }
    }

    #[test]
    fn cached_queries_agree_with_the_full_row_and_by_row_have_the_same_bits_together_and_alone() {
        let dims = Dims { heads: 4, kv_heads: 2, head_dim: 16 };
        let (q, k, v) = (random(1, 300, 4 * 16), random(2, 300, 2 * 16), random(3, 300, 2 * 16));
        for sliding_window in [None, Some(7)] {
            let op = CachedAttention { dims, scale: 0.25, sliding_window };
            let full = PackedAttention { dims, scale: 0.25, cu_seqlens: [0, 300].into(), sliding_window };
            let full = packed_attention(full, q.clone(), k.clone(), v.clone());
            let rows = |x: &Tensor<2>, from: usize, count: usize| x.clone().narrow(0, from, count);
            let mut cache = KeyValueCache::default();
            cache.append(rows(&k, 0, 290), rows(&v, 0, 290));
            let before = cache.clone();
            cache.append(rows(&k, 290, 10), rows(&v, 290, 10));
            let all = cache.attend(op, rows(&q, 290, 10));
            assert!(distance(&all, &rows(&full, 290, 10)) < 1e-6);
            let together = cache.attend_by_row(op, rows(&q, 290, 10));
            assert!(distance(&together, &rows(&full, 290, 10)) < 1e-6);

            let mut one_by_one = before;
            for i in 0..10 {
                one_by_one.append(rows(&k, 290 + i, 1), rows(&v, 290 + i, 1));
                let alone = one_by_one.attend_by_row(op, rows(&q, 290 + i, 1));
                assert_eq!(alone.into_data(), rows(&together, i, 1).into_data(), "query {i}");
            }
            cache.truncate(295);
            assert_eq!((cache.len(), one_by_one.len()), (295, 300));
            let alone = cache.attend_by_row(op, rows(&q, 294, 1));
            assert_eq!(alone.into_data(), rows(&together, 4, 1).into_data());
        }
    }
}
