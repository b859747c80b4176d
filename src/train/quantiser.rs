//! Rounding of gradients by the first CUDA device for sums in the network, and whether that is faster.
//!
//! Enters: a device, and what the user has said. Leaves: a [`Quantiser`] for the engine, and how it compares
//! with the processor. On the way from the GPU's memory into packets and back, a number takes these bytes:
//!
//! | rounded by | bytes between host and GPU | bytes that are written on the host |
//! |---|---|---|
//! | the processor | 4 + 4 | 4 by the driver, 2 into packets, 4 sums, 4 in their place, 4 by the driver |
//! | the GPU | 2 + 2 | 2 into packets, 2 into the arena |
//! | the GPU, results by AF_XDP | 2 + 2 | 2 into packets; the GPU reads sums where they arrived |
//!
//! The results have the same bits, so each rank may choose for itself.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_base::pages::{Pages, Part};
use sparktune_base::units::milliseconds as in_milliseconds;
use sparktune_cluster::xdp::BUCKET;
use sparktune_cluster::xdp::quantise::{decode, encode, magnitudes, most};
use sparktune_cluster::xdp::wire::VALUES;
use sparktune_cluster::{Lent, Quantiser};
use sparktune_kernels::nccl::Lent as Tensors;
use sparktune_kernels::quantise;

use crate::elapsed::milliseconds;

/// The count of numbers in a trial, about a million.
const TRIAL: usize = 1500 * VALUES;
const ROUNDS: usize = 3;
/// The share of the processor's time that the GPU must save.
const PAYS: f64 = 0.05;

/// Returns what rounds on this device, if that is requested, or, without a request, if it is measured to save
/// more than a twentieth of the processor's time; and a sentence about this for the log. Nothing is done on
/// the device if the request is that it does not round. `integers` is the part of the engine's arena that is
/// for a GPU's integers; without it, the GPU gets an arena of its own.
///
/// # Errors
/// Why the processor rounds, if that was not requested.
pub(crate) fn quantiser(
    device: &Device,
    asked: Option<bool>,
    integers: Option<Part>,
) -> Result<(Option<Box<dyn Quantiser>>, String), String> {
    if asked == Some(false) {
        return Ok((None, "gradients are rounded by the processor, as requested".into()));
    }
    let bytes = BUCKET * size_of::<i16>();
    let own = || Pages::in_parts([bytes]).map(|[own]| own);
    let integers = integers.map_or_else(own, Ok);
    let integers = integers.map_err(|error| format!("{bytes} bytes of memory were refused: {error}"))?;
    let mut gpu = FirstGpu(quantise::Quantiser::new(device, VALUES, integers)?);
    let pages = gpu.0.pages().kind();
    if asked == Some(true) {
        let words = format!("gradients are rounded by the GPU, as requested, with an arena of {pages}");
        return Ok((Some(Box::new(gpu)), words));
    }
    let [by_processor, by_gpu] = gpu.measured(device)?;
    let pays = by_gpu < by_processor * (1.0 - PAYS);
    let words = format!(
        "gradients are rounded by the {}: a million take the GPU {}, with an arena of {pages}, and the processor {}",
        if pays { "GPU" } else { "processor" },
        in_milliseconds(by_gpu),
        in_milliseconds(by_processor),
    );
    let gpu = pays.then(|| Box::new(gpu) as Box<dyn Quantiser>);
    Ok((gpu, words))
}

struct FirstGpu(quantise::Quantiser);

impl FirstGpu {
    /// Returns the milliseconds that the processor and this GPU take to round a million numbers and to
    /// replace them by their sums, with the copies into packets and back.
    fn measured(&mut self, device: &Device) -> Result<[f64; 2], String> {
        let mut least = [f64::INFINITY; 2];
        let mut packet = [[0; 2]; VALUES];
        for _ in 0..ROUNDS {
            let mut lent = Tensors::new(vec![Tensor::ones([1, TRIAL], device)])?;
            let began = Instant::now();
            let shared = self.0.magnitudes(&lent, 0..TRIAL);
            self.0.encode(&lent, 0..TRIAL, &shared, most(2))?;
            for integers in self.0.integers()[..TRIAL].chunks_exact_mut(VALUES) {
                packet.copy_from_slice(integers);
                integers.copy_from_slice(&black_box(packet));
            }
            let places = vec![None; shared.len()];
            self.0.decode(&mut lent, 0..TRIAL, &shared, most(2), &places)?;
            least[1] = milliseconds(began).min(least[1]);

            let began = Instant::now();
            let mut numbers = lent.read();
            let mut sums = vec![0.0; TRIAL];
            let shared = magnitudes(&numbers);
            let blocks = numbers.chunks_exact(VALUES).zip(sums.chunks_exact_mut(VALUES));
            for ((numbers, sums), magnitude) in blocks.zip(&shared) {
                encode(numbers, *magnitude, 2, None, &mut packet);
                decode(black_box(packet).map(i16::from_le_bytes), *magnitude, 2, sums);
            }
            numbers.copy_from_slice(&sums);
            let tensor = Tensor::<2>::from_data(TensorData::new(numbers, [1, TRIAL]), device);
            // Reading one number waits for the whole copy.
            black_box(tensor.slice([0..1, 0..1]).into_data());
            least[0] = milliseconds(began).min(least[0]);
        }
        Ok(least.map(|of_trial| of_trial * 1e6 / TRIAL as f64))
    }
}

impl Quantiser for FirstGpu {
    fn count(&self, lent: &mut Lent) -> Result<usize, String> {
        Ok(tensors(lent)?.count())
    }

    fn magnitudes(&mut self, lent: &mut Lent, of: Range<usize>) -> Result<Vec<f32>, String> {
        Ok(self.0.magnitudes(tensors(lent)?, of))
    }

    fn encode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
    ) -> Result<(), String> {
        self.0.encode(tensors(lent)?, of, magnitudes, most(workers))
    }

    fn pages(&self) -> Option<&Arc<Pages>> {
        Some(self.0.pages())
    }

    fn integers(&mut self) -> &mut [[u8; 2]] {
        self.0.integers()
    }

    fn decode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
        places: &[Option<usize>],
    ) -> Result<(), String> {
        self.0.decode(tensors(lent)?, of, magnitudes, most(workers), places)
    }

    fn numbers(&mut self, lent: &mut Lent) -> Result<Vec<f32>, String> {
        Ok(tensors(lent)?.read())
    }

    fn replace(&mut self, lent: &mut Lent, numbers: &[f32]) -> Result<(), String> {
        tensors(lent)?.replace(numbers)
    }
}

fn tensors(lent: &mut Lent) -> Result<&mut Tensors, String> {
    lent.downcast_mut().ok_or_else(|| "what was lent is not of this device".to_owned())
}

#[cfg(test)]
mod on_device {
    use std::thread::scope;

    use sparktune_cluster::xdp::{Choice, Xdp, join};
    use sparktune_cluster::{Collective, Launcher, Limits, Placement, free_port};
    use sparktune_kernels::testing::cuda_device;

    use super::*;
    use crate::cuda::{given_back, lend};

    /// Numbers like gradients of several parameters, of this rank.
    fn gradients(rank: usize, counts: &[usize]) -> Vec<Vec<f32>> {
        let mut random = sparktune_base::random::SplitMix64::new(rank as u64 + 1);
        let mut next = || ((random.next_f64() - 0.5) * (random.next_f64() * 20.0 - 15.0).exp()) as f32;
        counts.iter().map(|count| (0..*count).map(|_| next()).collect()).collect()
    }

    /// The sums of two ranks, as each of them gets them; ranks that are `on_device` lend tensors.
    fn sums(of: &[Vec<Vec<f32>>; 2], on_device: [bool; 2], device: &Device) -> [Vec<f32>; 2] {
        let port = free_port().unwrap();
        let joined = |rank: usize| -> Xdp {
            let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
            let placement = Placement { rank, world_size: 2, local_rank: rank, host, port, launcher };
            let choice = Choice::default();
            join(&placement, None, "build", Limits::default(), Arc::new(|| false), choice).unwrap()
        };
        let summed = |rank: usize| {
            let mut ranks = joined(rank);
            assert!(!ranks.takes_lent());
            if !on_device[rank] {
                let mut numbers = of[rank].concat();
                ranks.all_reduce(&mut numbers).unwrap();
                return numbers;
            }
            let (gpu, words) = quantiser(device, Some(true), ranks.arena()).unwrap();
            assert!(words.starts_with("gradients are rounded by the GPU, as requested"), "{words}");
            ranks.round_on(gpu.unwrap());
            assert!(ranks.takes_lent());
            let tensor = |numbers: &Vec<f32>| {
                let data = TensorData::new(numbers.clone(), [1, numbers.len()]);
                Tensor::<2>::from_data(data, device)
            };
            let mut lent = lend(of[rank].iter().map(tensor).collect());
            ranks.all_reduce_lent(&mut *lent).unwrap();
            let read = |tensor: Tensor<2>| tensor.into_data().try_to_vec::<f32>().unwrap();
            given_back(lent).into_iter().flat_map(read).collect()
        };
        scope(|scope| {
            let other = scope.spawn(|| summed(1));
            [summed(0), other.join().unwrap()]
        })
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    #[test]
    fn a_rank_whose_gpu_rounds_and_one_whose_processor_does_have_the_same_bits() {
        let Some(device) = cuda_device() else { return };
        // Several tensors in a block and over blocks, more than an arena holds, and few, which go over TCP.
        for counts in [vec![100, 5000, 3, 900, 70_001], vec![BUCKET + 5000], vec![1000, 17]] {
            let mut of = [0, 1].map(|rank| gradients(rank, &counts));
            if counts.len() > 2 {
                of[1][1][1234] = f32::NAN;
            }
            let [expected, other] = sums(&of, [false, false], &device);
            assert_eq!(bits(&expected), bits(&other));
            let [by_gpu, by_processor] = sums(&of, [true, false], &device);
            assert_eq!(bits(&by_gpu), bits(&expected), "{counts:?}");
            assert_eq!(bits(&by_processor), bits(&expected), "{counts:?}");
        }
    }

    #[test]
    fn who_rounds_is_measured_unless_it_is_requested() {
        let Some(device) = cuda_device() else { return };
        let (gpu, words) = quantiser(&device, Some(false), None).unwrap();
        assert!(gpu.is_none() && words.ends_with("as requested"), "{words}");
        let (gpu, words) = quantiser(&device, None, None).unwrap();
        let who = if gpu.is_some() { "GPU" } else { "processor" };
        assert!(words.starts_with(&format!("gradients are rounded by the {who}: ")), "{words}");
    }
}
