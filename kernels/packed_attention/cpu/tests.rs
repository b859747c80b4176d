//! Compares with the definition of attention in f64, whose gradients are themselves checked by central
//! differences.

use super::*;

/// Deterministic numbers in (−1, 1).
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

#[derive(Clone)]
struct Case {
    dims: Dims,
    scale: f32,
    sliding_window: Option<usize>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
    cu_seqlens: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Results {
    out: Vec<f32>,
    lse: Vec<f32>,
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, segments: &[usize]) -> Self {
        let cu_seqlens: Vec<_> = std::iter::once(0)
            .chain(segments.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            }))
            .collect();
        let tokens: usize = segments.iter().sum();
        // Queries three times as large make the softmax peaked, as in a trained model.
        let q = numbers(tokens * heads * head_dim, 1).into_iter().map(|x| 3.0 * x).collect();
        Self {
            dims: Dims { heads, kv_heads, head_dim },
            scale: (head_dim as f32).sqrt().recip(),
            sliding_window: None,
            q,
            k: numbers(tokens * kv_heads * head_dim, 2),
            v: numbers(tokens * kv_heads * head_dim, 3),
            d_out: numbers(tokens * heads * head_dim, 4),
            cu_seqlens,
        }
    }

    fn windowed(self, window: usize) -> Self {
        Self { sliding_window: Some(window), ..self }
    }

    fn tokens(&self) -> usize {
        self.cu_seqlens[self.cu_seqlens.len() - 1]
    }

    /// Runs both passes into buffers full of NaN, which reveal values that are not written, or read before
    /// they are written.
    fn run(&self) -> Results {
        let nan = |n| vec![f32::NAN; n];
        let mut r = Results {
            out: nan(self.q.len()),
            lse: nan(self.q.len() / self.dims.head_dim),
            dq: nan(self.q.len()),
            dk: nan(self.k.len()),
            dv: nan(self.k.len()),
        };
        let Self { dims, scale, sliding_window, q, k, v, d_out, cu_seqlens } = self;
        forward(*dims, *scale, q, k, v, cu_seqlens, *sliding_window, &mut r.out, &mut r.lse);
        backward(
            *dims,
            *scale,
            q,
            k,
            v,
            &r.out,
            &r.lse,
            d_out,
            cu_seqlens,
            *sliding_window,
            &mut r.dq,
            &mut r.dk,
            &mut r.dv,
        );
        r
    }

    fn run_with_threads(&self, threads: usize) -> Results {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| self.run())
    }

    /// Returns the segment `index` alone.
    fn alone(&self, index: usize) -> Self {
        let tokens = self.cu_seqlens[index]..self.cu_seqlens[index + 1];
        let part = |data: &[f32]| {
            let stride = data.len() / self.tokens();
            data[tokens.start * stride..tokens.end * stride].to_vec()
        };
        Self {
            dims: self.dims,
            scale: self.scale,
            sliding_window: self.sliding_window,
            q: part(&self.q),
            k: part(&self.k),
            v: part(&self.v),
            d_out: part(&self.d_out),
            cu_seqlens: vec![0, tokens.len()],
        }
    }

    fn assert_matches_the_definition(&self) {
        let got = self.run();
        let want = definition(self);
        for (name, got, want) in [
            ("out", &got.out, &want.out),
            ("lse", &got.lse, &want.lse),
            ("dq", &got.dq, &want.dq),
            ("dk", &got.dk, &want.dk),
            ("dv", &got.dv, &want.dv),
        ] {
            let error = relative_error(got, want);
            assert!(
                error < 1e-5,
                "{name}: relative error {error:e}, {:?}, window {:?}, {:?}",
                self.dims,
                self.sliding_window,
                self.cu_seqlens
            );
        }
    }
}

/// Returns the largest difference divided by the largest value, or by 0.1 if all are smaller (gradients that
/// cancel). NaN counts as infinite.
fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.1, |a: f64, b| a.max(b.abs()));
    let errors = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs());
    errors.fold(0.0, |a, e| if e.is_nan() { f64::INFINITY } else { a.max(e) }) / largest
}

struct Exact {
    out: Vec<f64>,
    lse: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

/// softmax(scale q kᵀ) v with loops, and its gradients.
fn definition(case: &Case) -> Exact {
    let Dims { heads, kv_heads, head_dim } = case.dims;
    let scale = f64::from(case.scale);
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (q, k, v, d_out) = (wide(&case.q), wide(&case.k), wide(&case.v), wide(&case.d_out));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let add = |to: &mut [f64], factor: f64, x: &[f64]| {
        to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
    };
    let mut e = Exact {
        out: vec![0.0; q.len()],
        lse: vec![0.0; q.len() / head_dim],
        dq: vec![0.0; q.len()],
        dk: vec![0.0; k.len()],
        dv: vec![0.0; v.len()],
    };
    for segment in case.cu_seqlens.windows(2) {
        for i in segment[0]..segment[1] {
            let oldest =
                case.sliding_window.map_or(segment[0], |w| segment[0].max((i + 1).saturating_sub(w)));
            for head in 0..heads {
                let at_q = (i * heads + head) * head_dim..(i * heads + head + 1) * head_dim;
                let at_k = |j: usize| {
                    let row = j * kv_heads + head / (heads / kv_heads);
                    row * head_dim..(row + 1) * head_dim
                };
                let scores: Vec<_> =
                    (oldest..=i).map(|j| scale * dot(&q[at_q.clone()], &k[at_k(j)])).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let lse = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
                e.lse[i * heads + head] = lse;
                let p: Vec<_> = scores.iter().map(|s| (s - lse).exp()).collect();
                for (j, p) in (oldest..).zip(&p) {
                    add(&mut e.out[at_q.clone()], *p, &v[at_k(j)]);
                }
                let delta = dot(&d_out[at_q.clone()], &e.out[at_q.clone()]);
                for (j, p) in (oldest..).zip(&p) {
                    let ds = scale * p * (dot(&d_out[at_q.clone()], &v[at_k(j)]) - delta);
                    add(&mut e.dv[at_k(j)], *p, &d_out[at_q.clone()]);
                    add(&mut e.dk[at_k(j)], ds, &q[at_q.clone()]);
                    add(&mut e.dq[at_q.clone()], ds, &k[at_k(j)]);
                }
            }
        }
    }
    e
}

#[test]
fn the_gradients_of_the_definition_agree_with_central_differences() {
    let case = Case::new(4, 2, 3, &[5, 1, 4]).windowed(3);
    let exact = definition(&case);
    let loss = |case: &Case| -> f64 {
        definition(case).out.iter().zip(&case.d_out).map(|(o, d)| o * f64::from(*d)).sum()
    };
    // 2⁻⁷ steps change an f32 in (−4, 4) exactly enough; the error of the difference is of order 2⁻¹⁴.
    let step = 1.0 / 128.0;
    let difference = |select: fn(&mut Case) -> &mut Vec<f32>, i: usize| {
        let mut moved = case.clone();
        let x = select(&mut moved)[i];
        select(&mut moved)[i] = x + step;
        let (up, above) = (f64::from(x + step), loss(&moved));
        select(&mut moved)[i] = x - step;
        (above - loss(&moved)) / (up - f64::from(x - step))
    };
    for (select, gradient) in [
        ((|c| &mut c.q) as fn(&mut Case) -> &mut Vec<f32>, &exact.dq),
        (|c| &mut c.k, &exact.dk),
        (|c| &mut c.v, &exact.dv),
    ] {
        for (i, g) in gradient.iter().enumerate() {
            let d = difference(select, i);
            assert!((g - d).abs() < 2e-4, "element {i}: {g} against {d}");
        }
    }
}

#[test]
fn every_length_around_the_block_borders_matches_the_definition() {
    for length in [1, 2, 63, 64, 65, 127, 128, 129, 130, 159, 160, 161, 255, 256, 257, 320, 321, 700] {
        Case::new(2, 1, 16, &[length]).assert_matches_the_definition();
    }
}

#[test]
fn every_head_size_and_grouping_matches_the_definition() {
    for head_dim in [12, 16, 32, 64, 128, 256] {
        for (heads, kv_heads) in [(2, 2), (4, 2), (4, 1), (3, 3)] {
            Case::new(heads, kv_heads, head_dim, &[65, 1, 70]).assert_matches_the_definition();
        }
    }
}

#[test]
fn segments_of_every_kind_match_the_definition() {
    for segments in [&[1, 1, 1][..], &[0, 5, 0, 130, 0], &[1, 64, 1, 200, 33], &[300, 7, 300]] {
        Case::new(4, 2, 32, segments).assert_matches_the_definition();
    }
}

#[test]
fn sliding_windows_match_the_definition() {
    for window in [1, 2, 64, 100, 128, 129, 130, 257, 600, 5000] {
        Case::new(4, 2, 16, &[600, 40]).windowed(window).assert_matches_the_definition();
    }
}

#[test]
fn an_empty_row_is_no_work() {
    assert!(Case::new(2, 1, 8, &[]).run().out.is_empty());
    assert!(Case::new(2, 1, 8, &[0]).run().out.is_empty());
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let mut case = Case::new(2, 1, 16, &[200]);
    case.q.iter_mut().for_each(|x| *x *= 300.0);
    let got = case.run();
    assert!(got.out.iter().chain(&got.dq).chain(&got.dk).chain(&got.dv).all(|x| x.is_finite()));
    assert!(relative_error(&got.out, &definition(&case).out) < 1e-3);
}

#[test]
fn a_nan_reaches_the_output_and_every_gradient() {
    let mut case = Case::new(2, 1, 16, &[200]);
    case.k[150 * 16] = f32::NAN;
    let got = case.run();
    assert!(got.out[..150 * 32].iter().all(|x| x.is_finite()));
    assert!(got.out[150 * 32..].iter().all(|x| x.is_nan()));
    for gradient in [&got.dq, &got.dk, &got.dv] {
        assert!(gradient.iter().any(|x| x.is_nan()));
    }
}

#[test]
fn a_packed_segment_has_the_same_bits_as_alone() {
    for case in [
        Case::new(4, 2, 32, &[130, 1, 300, 64, 513]),
        Case::new(4, 2, 32, &[130, 1, 300, 64, 513]).windowed(90),
    ] {
        let packed = case.run();
        for index in 0..case.cu_seqlens.len() - 1 {
            let alone = case.alone(index).run();
            let tokens = case.cu_seqlens[index]..case.cu_seqlens[index + 1];
            let part = |data: &[f32]| {
                let stride = data.len() / case.tokens();
                data[tokens.start * stride..tokens.end * stride].to_vec()
            };
            let from_packed = Results {
                out: part(&packed.out),
                lse: part(&packed.lse),
                dq: part(&packed.dq),
                dk: part(&packed.dk),
                dv: part(&packed.dv),
            };
            assert!(alone == from_packed, "segment {index}");
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let case = Case::new(4, 2, 64, &[700, 3, 129, 260]);
    let alone = case.run_with_threads(1);
    for threads in [2, 3, 7] {
        assert!(alone == case.run_with_threads(threads), "{threads} threads");
    }
}

#[test]
fn decoding_against_a_cache_equals_the_full_row() {
    for case in [Case::new(4, 2, 32, &[600]), Case::new(4, 2, 32, &[600]).windowed(77)] {
        let full = case.run().out;
        for (past, new) in [(0, 600), (0, 1), (1, 1), (127, 1), (511, 3), (599, 1), (300, 300)] {
            let tokens = past + new;
            let (q_row, kv_row) = (case.dims.q_stride(), case.dims.kv_stride());
            let q = &case.q[past * q_row..tokens * q_row];
            let mut out = vec![f32::NAN; new * q_row];
            let (k, v) = (&case.k[..tokens * kv_row], &case.v[..tokens * kv_row]);
            forward_cached(case.dims, case.scale, q, k, v, past, case.sliding_window, &mut out);
            let want = &full[past * q_row..tokens * q_row];
            let worst = out.iter().zip(want).fold(0.0, |a: f32, (o, w)| a.max((o - w).abs()));
            assert!(worst <= 1e-6, "{past}+{new}: {worst:e}");
        }
    }
}
