//! Rounding of lent tensors to 16 bits on their CUDA device, for sums in the network.
//!
//! Enters: tensors that are lent, the magnitudes of their blocks over all ranks, and the sums of integers in
//! an arena of the host, wherever in it they came. Leaves: integers in that arena, and in the tensors the
//! numbers that their sums stand for. The device reads and writes the arena directly, so 2 bytes a number go
//! each way between them, without a copy on the host. It must not know ranks or packets;
//! `src/cluster/xdp/quantise.rs` states the rule and gives the same bits.

mod arena;

use std::ops::Range;
use std::sync::Arc;

use arena::Arena;
use burn::tensor::{DType, Device, Tensor};
use cubecl::future::block_on;
use cubecl::server::Handle;
use sparktune_base::pages::{Pages, Part};

use crate::cuda::{CudaTensor, Kernel, Sizes, empty, into_tensor, primitive, sizes};
use crate::nccl::Lent;

const SOURCE: &str = "quantise/quantise.cuh";
const THREADS: usize = 224;

/// The first CUDA device, and an arena for the integers of one sum.
pub struct Quantiser {
    like: CudaTensor,
    arena: Arena,
    block: usize,
}

impl Quantiser {
    /// Lets the first CUDA device, burn's `device`, reach an arena: `integers` is the part for the integers
    /// of a sum, 2 bytes each, and sums may lie anywhere in its pages. `block` is the number of values that
    /// share a magnitude.
    ///
    /// # Errors
    /// The driver's, in words.
    ///
    /// # Panics
    /// When the device's runtime fails.
    pub fn new(device: &Device, block: usize, integers: Part) -> Result<Self, String> {
        // burn has started the driver and keeps the device's context.
        let like = primitive(Tensor::zeros([1, 1], device));
        Ok(Self { like, arena: Arena::new(integers)?, block })
    }

    /// Returns the pages of the arena.
    pub fn pages(&self) -> &Arc<Pages> {
        self.arena.pages()
    }

    /// Returns the integers of the last [`encode`](Self::encode), little-endian. The caller may replace those
    /// of a block by their sums, which [`decode`](Self::decode) reads.
    pub fn integers(&mut self) -> &mut [[u8; 2]] {
        self.arena.bytes().as_chunks_mut().0
    }

    /// Returns the largest magnitude of each block of some of the tensors' numbers, NaN if one is not finite.
    /// Waits for the device.
    ///
    /// # Panics
    /// When there are fewer numbers, or the device's runtime fails.
    pub fn magnitudes(&self, lent: &Lent, of: Range<usize>) -> Vec<f32> {
        let blocks = of.len().div_ceil(self.block);
        let found = empty(&self.like, [1, blocks], DType::F32);
        let sizes = self.sizes(lent, &of, 0);
        self.kernel("magnitudes_of_blocks", blocks).read(&self.table(lent)).write(&found).launch(sizes);
        into_tensor(found).into_data().try_to_vec().expect("magnitudes are f32")
    }

    /// Writes integers of at most `most` for some of the tensors' numbers into the arena. Waits for the
    /// device.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When there are fewer numbers, the arena is smaller, or there are not as many magnitudes as blocks.
    pub fn encode(
        &mut self,
        lent: &Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        most: i16,
    ) -> Result<(), String> {
        let blocks = self.blocks(&of, magnitudes);
        let magnitudes = self.upload(bytemuck::cast_slice(magnitudes));
        let sizes = self.sizes(lent, &of, most);
        self.kernel("integers_of_blocks", blocks).read(&self.table(lent)).read(&magnitudes).launch(sizes);
        self.wait()
    }

    /// Replaces some of the tensors' numbers by those that sums stand for. For each block, `places` has the
    /// byte of the arena's pages at which its sums begin, or `None` if they are in the place of its integers.
    /// Waits for the device.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// As [`encode`](Self::encode), also when there are not as many places as blocks, or when a place is odd
    /// or its sums end outside the arena.
    pub fn decode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        most: i16,
        places: &[Option<usize>],
    ) -> Result<(), String> {
        let blocks = self.blocks(&of, magnitudes);
        assert_eq!(places.len(), blocks);
        let bytes = self.block * size_of::<i16>();
        let address = |(block, place): (usize, &Option<usize>)| match place {
            None => self.arena.on_device() + (block * bytes) as u64,
            Some(byte) => {
                assert!(byte + bytes <= self.arena.pages().len(), "sums lie outside the arena");
                assert!(byte.is_multiple_of(size_of::<i16>()), "sums begin at an odd byte");
                self.arena.of_pages(*byte)
            }
        };
        let places: Vec<u64> = places.iter().enumerate().map(address).collect();
        let (magnitudes, places) =
            (self.upload(bytemuck::cast_slice(magnitudes)), self.upload(bytemuck::cast_slice(&places)));
        let sizes = self.sizes(lent, &of, most);
        let kernel = self.kernel("numbers_of_blocks", blocks);
        kernel.read(&self.table(lent)).read(&magnitudes).read(&places).launch(sizes);
        self.wait()
    }

    /// Returns how many blocks `of` has. Panics if the arena has no room for their integers, or there are not
    /// as many magnitudes.
    fn blocks(&self, of: &Range<usize>, magnitudes: &[f32]) -> usize {
        let blocks = of.len().div_ceil(self.block);
        assert!(of.len() * size_of::<i16>() <= self.arena.len(), "the arena is too small");
        assert_eq!(magnitudes.len(), blocks);
        blocks
    }

    fn upload(&self, bytes: &[u8]) -> Handle {
        self.like.client.create_from_slice(bytes)
    }

    fn wait(&self) -> Result<(), String> {
        block_on(self.like.client.sync()).map_err(|error| error.to_string())
    }

    fn kernel(&self, entry: &'static str, blocks: usize) -> Kernel {
        let block = format!("{}u", self.block);
        Kernel::new(SOURCE, entry).define("BLOCK", block).blocks(blocks).threads(THREADS)
    }

    /// Returns where the tensors' numbers lie, as the kernels read it.
    fn table(&self, lent: &Lent) -> OfClient {
        let mut rows: Vec<[u64; 2]> = Vec::new();
        let mut first = 0;
        for (address, count) in lent.numbers() {
            rows.push([first, address]);
            first += count as u64;
        }
        rows.push([first, 0]);
        let client = self.like.client.clone();
        OfClient(self.upload(bytemuck::cast_slice(&rows)), client)
    }

    fn sizes(&self, lent: &Lent, of: &Range<usize>, most: i16) -> Sizes {
        assert!(of.end <= lent.count(), "there are fewer numbers");
        let (first, count) = (of.start as u64, of.len() as u64);
        let most = u32::from(most.unsigned_abs());
        sizes![first, count, self.arena.on_device(), lent.numbers().count() as u32, most]
    }
}

/// A buffer of a client.
struct OfClient(Handle, cubecl::client::Client);

impl crate::cuda::Buffer for OfClient {
    fn handle(&self) -> Handle {
        self.0.clone()
    }

    fn client(&self) -> Option<cubecl::client::Client> {
        Some(self.1.clone())
    }
}

#[cfg(test)]
mod on_device {
    use burn::tensor::TensorData;

    use super::*;
    use crate::check::random;
    use crate::testing::cuda_device;

    const BLOCK: usize = 672;

    #[test]
    fn numbers_are_those_of_their_integers_in_all_tensors_and_no_others_change() {
        let Some(device) = cuda_device() else { return };
        let counts = [5, 3000, 1, 700];
        let all: usize = counts.iter().sum();
        let host: Vec<f32> = random(1, 1, all).into_data().try_to_vec().unwrap();
        let mut rest = host.as_slice();
        let tensors = counts.map(|count| {
            let (own, others) = rest.split_at(count);
            rest = others;
            Tensor::<2>::from_data(TensorData::new(own.to_vec(), [1, count]), &device)
        });
        let mut lent = Lent::new(tensors.to_vec()).unwrap();
        drop(tensors);
        // The arena also has memory that is not for integers, as frames are: the second block's sums go
        // there.
        let [integers, mut others] = Pages::in_parts([2 * (2 * BLOCK + 10), 5000]).unwrap();
        let elsewhere = others.start() + 402;
        let mut quantiser = Quantiser::new(&device, BLOCK, integers).unwrap();
        let (from, most) = (BLOCK, 16_383);
        let of = from..from + 2 * BLOCK + 10;
        let magnitudes = quantiser.magnitudes(&lent, of.clone());
        let largest = |block: &[f32]| block.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
        assert_eq!(magnitudes, host[of.clone()].chunks(BLOCK).map(largest).collect::<Vec<_>>());
        quantiser.encode(&lent, of.clone(), &magnitudes, most).unwrap();
        // The other rank has the same numbers.
        let mut sums = Vec::new();
        for integer in &mut quantiser.integers()[..of.len()] {
            let sum = 2 * i16::from_le_bytes(*integer);
            *integer = sum.to_le_bytes();
            sums.push(sum);
        }
        let second = &mut quantiser.integers()[BLOCK..2 * BLOCK];
        others.bytes()[402..][..2 * BLOCK].copy_from_slice(second.as_flattened());
        second.fill([77; 2]);
        let places = [None, Some(elsewhere), None];
        quantiser.decode(&mut lent, of.clone(), &magnitudes, most, &places).unwrap();
        let found = lent.into_tensors().into_iter();
        let found: Vec<f32> =
            found.flat_map(|tensor| tensor.into_data().try_to_vec::<f32>().unwrap()).collect();
        let mut expected = host.clone();
        for (at, sum) in of.zip(sums) {
            let step = f64::from(magnitudes[(at - from) / BLOCK]) / f64::from(most);
            expected[at] = (f64::from(sum) * step) as f32;
            assert!((expected[at] - 2.0 * host[at]).abs() <= step as f32 * 1.01, "number {at}");
        }
        assert!(found.iter().zip(&expected).all(|(one, other)| one.to_bits() == other.to_bits()));
        assert_eq!(found.len(), expected.len());
    }
}
