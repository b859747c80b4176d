//! What rounding the sums of ranks does to a training: integers of 16 bits as in the network, with and
//! without error feedback, beside bf16 and beside another order of the same sum.
//!
//! `SPARKTUNE_ROUNDED_STEPS=60 cargo test … rounded -- --nocapture` prints the table for more steps.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use sparktune_cluster::xdp::quantise::{agree, decode, encode, magnitudes};
use sparktune_cluster::xdp::wire::VALUES;
use sparktune_cluster::{Collective, Error, SummedBy, Traffic};
use sparktune_runlog::{Checkpoints, RunDir};
use sparktune_train::{TrainOptions, train_as_rank};

use crate::{FULL, LORA, losses, run};

const RANKS: usize = 4;

/// How sums are made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    InOrder,
    /// From the last rank to the first.
    Reversed,
    /// In integers of 16 bits.
    I16,
    /// The same, and what was lost is added to the next gradient.
    I16Fed,
    /// Around a ring, in bf16.
    Bf16,
}

/// A sum's signal and noise, of single steps and of all steps together.
#[derive(Default)]
struct Noise {
    signal: f64,
    noise: f64,
    /// For each sum of a step: the exact sums of all steps, and what was made of them.
    all: Vec<Vec<(f64, f64)>>,
}

impl Noise {
    fn add(&mut self, at: usize, exact: &[f64], found: &[f32]) {
        let place = of_length(&mut self.all, at, exact.len(), (0.0, 0.0));
        for ((sum, found), all) in exact.iter().zip(found).zip(place) {
            let found = f64::from(*found);
            self.signal += sum * sum;
            self.noise += (found - sum).powi(2);
            (all.0, all.1) = (all.0 + sum, all.1 + found);
        }
    }

    /// In dB.
    fn ratios(&self) -> [f64; 2] {
        let all = self.all.iter().flatten();
        let (signal, noise) = all.fold((0.0, 0.0), |(signal, noise), (sum, found)| {
            (signal + sum * sum, noise + (found - sum).powi(2))
        });
        [self.signal / self.noise, signal / noise].map(|ratio| 10.0 * ratio.log10())
    }
}

/// Returns what is kept for a sum of a step; anew if there are other numbers.
fn of_length<T: Clone>(all: &mut Vec<Vec<T>>, at: usize, length: usize, zero: T) -> &mut Vec<T> {
    if all.len() <= at {
        all.resize(at + 1, Vec::new());
    }
    if all[at].len() != length {
        all[at] = vec![zero; length];
    }
    &mut all[at]
}

/// One of several ranks in this process.
struct Rounding {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    way: Way,
    /// The sums since the ranks have said something: a step's sums have the same numbers each time.
    at: usize,
    residuals: Vec<Vec<f32>>,
    noise: Noise,
}

impl Rounding {
    fn all(way: Way) -> Vec<Self> {
        let of = |rank| {
            let (to, from, residuals, noise) = (Vec::new(), Vec::new(), Vec::new(), Noise::default());
            Self { rank, to, from, way, at: 0, residuals, noise }
        };
        let mut all: Vec<Self> = (0..RANKS).map(of).collect();
        for from in 0..RANKS {
            for to in 0..RANKS {
                let (sender, receiver) = channel();
                all[from].to.push(sender);
                all[to].from.push(receiver);
            }
        }
        all
    }

    fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        for to in &self.to {
            to.send(own.to_vec()).map_err(|_| Error::Interrupted)?;
        }
        self.from.iter().map(|from| from.recv().map_err(|_| Error::Interrupted)).collect()
    }

    fn gather_numbers(&self, own: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let read = |bytes: Vec<u8>| {
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
        };
        Ok(self.gather(&bytes)?.into_iter().map(read).collect())
    }

    /// Sums as the engine does, without packets.
    fn as_integers(&mut self, numbers: &mut [f32], at: usize) -> Result<(), Error> {
        let feeds = self.way == Way::I16Fed;
        let mut left = if feeds {
            std::mem::take(of_length(&mut self.residuals, at, numbers.len(), 0.0))
        } else {
            Vec::new()
        };
        numbers.iter_mut().zip(&left).for_each(|(number, left)| *number += left);
        let mut shared = magnitudes(numbers);
        let said = self.gather_numbers(&shared)?;
        said.into_iter().for_each(|said| agree(&mut shared, said));
        let mut integers = Vec::with_capacity(numbers.len());
        for (block, part) in numbers.chunks(VALUES).enumerate() {
            let mut bytes = [[0; 2]; VALUES];
            let left = if feeds { Some(&mut left[block * VALUES..][..part.len()]) } else { None };
            encode(part, shared[block], RANKS, left, &mut bytes);
            integers.extend(bytes[..part.len()].iter().flatten());
        }
        if feeds {
            self.residuals[at] = left;
        }
        let mut sums = vec![0_i16; numbers.len()];
        for part in self.gather(&integers)? {
            let part = part.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]]));
            sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
        for ((part, sums), magnitude) in numbers.chunks_mut(VALUES).zip(sums.chunks(VALUES)).zip(shared) {
            decode(sums.iter().copied(), magnitude, RANKS, part);
        }
        Ok(())
    }
}

fn as_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

impl Collective for Rounding {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        RANKS
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let mut parts = self.gather_numbers(values)?;
        let at = self.at;
        self.at += 1;
        let exact: Vec<f64> =
            (0..values.len()).map(|at| parts.iter().map(|part| f64::from(part[at])).sum()).collect();
        match self.way {
            Way::I16 | Way::I16Fed => self.as_integers(values, at)?,
            way => {
                if way == Way::Reversed {
                    parts.reverse();
                }
                let is_bf16 = way == Way::Bf16;
                let rounded = |value: f32| if is_bf16 { as_bf16(value) } else { value };
                for (at, value) in values.iter_mut().enumerate() {
                    let first = rounded(parts[0][at]);
                    *value = parts[1..].iter().fold(first, |sum, part| rounded(sum + rounded(part[at])));
                }
            }
        }
        if self.rank == 0 {
            self.noise.add(at, &exact, values);
        }
        Ok(())
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.at = 0;
        self.gather(own)
    }

    fn leave(&mut self, _reason: Option<&str>) {}

    fn summed_by(&self) -> SummedBy {
        if matches!(self.way, Way::I16 | Way::I16Fed) { SummedBy::Xdp } else { SummedBy::Tcp }
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// What has become of a training.
struct Trained {
    losses: Vec<f64>,
    weights: Vec<f32>,
    ratios: [f64; 2],
}

fn trained(root: &Path, method: &str, way: Way, steps: u64) -> Trained {
    let runs: Vec<RunDir> = (0..RANKS)
        .map(|rank| {
            let root = root.join(format!("{way:?}-{rank}"));
            std::fs::create_dir_all(&root).unwrap();
            let run = run(&root, method, "none", steps, false);
            let plan = run.read_plan().unwrap();
            let plan = plan.replace("grad_accum_steps = 2", &format!("grad_accum_steps = {RANKS}"));
            std::fs::write(run.path().join("plan.toml"), plan.replace("epochs = 2", "epochs = 200")).unwrap();
            run
        })
        .collect();
    let ratios = std::thread::scope(|scope| {
        let train = |(run, mut rank): (&RunDir, Rounding)| {
            let run = RunDir::open(run.path()).unwrap();
            scope.spawn(move || {
                let options = TrainOptions::default();
                train_as_rank(&run, &AtomicBool::new(false), &options, &mut rank).unwrap();
                rank.noise.ratios()
            })
        };
        let threads: Vec<_> = runs.iter().zip(Rounding::all(way)).map(train).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    });
    let newest = Checkpoints::new(&runs[0]).newest_valid().unwrap().checkpoint.unwrap();
    let bytes = std::fs::read(newest.path.join("weights.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let numbers = bytes[head..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
    let losses = losses(&runs[0]).into_iter().map(|(_, loss)| loss.parse().unwrap()).collect();
    Trained { losses, weights: numbers.collect(), ratios }
}

#[test]
fn sums_in_16_bits_are_nearer_than_bf16_and_error_feedback_brings_the_weights_no_nearer() {
    let steps = std::env::var("SPARKTUNE_ROUNDED_STEPS").map_or(8, |text| text.parse().unwrap());
    for (name, method) in [("LoRA", LORA), ("full", FULL)] {
        let root = tempfile::tempdir().unwrap();
        let exact = trained(root.path(), method, Way::InOrder, steps);
        assert_eq!(exact.losses.len(), steps as usize);
        println!(
            "{name}, {steps} steps of {RANKS} ranks: dB of a step's sum, of all; difference of losses, of weights; last loss"
        );
        let mut off = Vec::new();
        for way in [Way::InOrder, Way::Reversed, Way::I16, Way::I16Fed, Way::Bf16] {
            let found = trained(root.path(), method, way, steps);
            let differences = exact.losses.iter().zip(&found.losses).map(|(one, other)| (one - other).abs());
            let of_losses = differences.fold(0.0, f64::max);
            let square = |value: f32| f64::from(value).powi(2);
            let all: f64 = exact.weights.iter().map(|weight| square(*weight)).sum();
            let apart = exact.weights.iter().zip(&found.weights).map(|(one, other)| square(one - other));
            let of_weights = (apart.sum::<f64>() / all).sqrt();
            let ([one, together], last) = (found.ratios, found.losses.last().unwrap());
            println!("{way:?}: {one:.1} {together:.1} {of_losses:.2e} {of_weights:.2e} {last:.6}");
            off.push((of_weights, one, together));
        }
        let [in_order, _, plain, fed, bf16] = off[..] else { unreachable!() };
        assert_eq!(in_order.0, 0.0, "the same sums are the same training");
        assert!(plain.0 > 0.0, "it is another training");
        assert!(plain.1 > bf16.1 + 15.0 && plain.2 > bf16.2 + 10.0, "{name}: {plain:?} beside {bf16:?}");
        // What the sum of all steps gains does not arrive in the weights.
        assert!(fed.2 > plain.2 + 3.0 && fed.0 > plain.0 / 2.0, "{name}: {fed:?} beside {plain:?}");
    }
}
