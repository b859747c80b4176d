//! Findings about speed: loading, training, waiting, and the way of the data.

use sparktune_base::units::count;

use super::compared::{
    NONE, QUBGPU_OVER_JSONL, change, fine_percent, not_measured, of_dropping, of_factor, of_loading,
    of_reduction, of_training, three, times,
};
use super::types::{Found, Verdict};
use crate::claims::{self, Figure};
use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{Loading, Results, Training};
use crate::speeds::{Speeds, WayToDevice};
use crate::spread::Spread;
use crate::summary::{per_second, published_sum, published_tokens, steady_sum, wait_share};

pub(super) fn loading_samples(results: &Results) -> Found {
    loading(results, claims::LOADING_SAMPLES.ratio(), |one| one.examples)
}

pub(super) fn loading_tokens(results: &Results) -> Found {
    loading(results, claims::LOADING_TOKENS.ratio(), |one| {
        published_tokens(one.pipeline, one.tokens, one.positions)
    })
}

fn loading(results: &Results, claimed: f64, count: fn(&Loading) -> u64) -> Found {
    let rate = |one: &Loading| one.warm_ms.iter().map(|ms| count(one) as f64 / ms).collect();
    let same = |one: &Loading| one.warm_ms.iter().map(|ms| one.tokens as f64 / ms).collect();
    let cold = |one: &Loading| one.cold_ms.iter().map(|ms| one.tokens as f64 / ms).collect();
    let published = of_loading(results, Arrangement::Published, QUBGPU_OVER_JSONL, rate);
    let fair = of_loading(results, Arrangement::Fair, [Pipeline::Qubgpu, Pipeline::JsonlPacked], same);
    let cold = of_loading(results, Arrangement::Fair, [Pipeline::Qubgpu, Pipeline::JsonlPacked], cold);
    let Some(decides) = fair.or(published) else { return not_measured("Loading") };
    let verdict = of_factor(decides, claimed);
    let why = format!(
        "A row of a token file is looked up and copied; a row of JSON Lines is first parsed, rendered and tokenised. The fair figure counts the same tokens on both sides and packs both; in the first pass, with the file not in the page cache, it is {}. A training can gain from this only the share of a step that waits for data.",
        times(cold)
    );
    (times(published), times(fair), verdict, why)
}

pub(super) fn load_time(results: &Results, speeds: &Speeds) -> Found {
    let whole = |one: &Loading| one.first_batch_ms.clone();
    let data = |one: &Loading| {
        one.first_batch_ms
            .iter()
            .zip(&one.tokenizer_ms)
            .map(|(whole, part)| (whole - part).max(1e-6))
            .collect()
    };
    let sides = [Pipeline::Jsonl, Pipeline::Qubgpu];
    let published = of_loading(results, Arrangement::Published, sides, whole);
    let sides = [Pipeline::JsonlPacked, Pipeline::Qubgpu];
    let fair = of_loading(results, Arrangement::Fair, sides, whole);
    let without = of_loading(results, Arrangement::Fair, sides, data);
    let Some(decides) = fair.or(published) else { return not_measured("Loading") };
    let megabytes = |what: &str| speeds.value(what).map(megabytes_per_s);
    let of_version_1 = megabytes("version 1, read and checked").zip(megabytes("QubGPU's way"));
    let beside = of_version_1.map_or(String::new(), |(ours, python)| {
        format!(" Of QubGPU's own packets one core reads and checks {ours} here, and QubGPU's way in Python {python}.")
    });
    let first = megabytes("the first time").map_or(String::new(), |rate| {
        format!(" Opening a token file and comparing every checksum takes as long as its bytes at {rate}.")
    });
    let why = format!(
        "From nothing to the first batch, with the file not in the page cache. A token file needs no tokenizer, and JSON Lines do; without the time for the tokenizer it is {}. The time to make the token file is not included, here or in QubGPU's figures.{first}{beside}",
        times(without)
    );
    (times(published), times(fair), of_factor(decides, 1.0 / claims::LOAD_TIME.ratio()), why)
}

pub(super) fn throughput(results: &Results) -> Found {
    let published_rate = |one: &Training| per_second(&[one], published_sum)[0];
    let targets = |one: &Training| per_second(&[one], |one| steady_sum(one, &one.targets))[0];
    let counted = of_training(results, Arrangement::Published, QUBGPU_OVER_JSONL, published_rate);
    let same = of_training(results, Arrangement::Published, QUBGPU_OVER_JSONL, targets);
    let fair = of_training(results, Arrangement::Fair, QUBGPU_OVER_JSONL, targets);
    let sides = [Pipeline::Qubgpu, Pipeline::JsonlPacked];
    let only_data = of_training(results, Arrangement::Fair, sides, targets);
    let packing = [Pipeline::JsonlPacked, Pipeline::Jsonl];
    let packing = of_training(results, Arrangement::Fair, packing, targets);
    let Some(decides) = only_data.or(same) else { return not_measured("Training") };
    let published = format!("{}; counted alike {}", times(counted), times(same));
    let why = format!(
        "QubGPU counts the padding of its own rows as tokens, but not that of the JSON Lines; counted alike, the same padded training is {} as fast. Packing instead of padding makes it {} as fast, and packing needs no token file; what reading a token file adds to that is {}, which decides.",
        times(same),
        times(packing),
        times(only_data)
    );
    let shown = format!("{}; against packed JSON Lines {}", times(fair), times(only_data));
    (published, shown, of_factor(decides, claims::TITLE), why)
}

pub(super) fn wall_time(results: &Results) -> Found {
    let published = of_dropping(results, Arrangement::Published, Training::wall_s);
    let without = of_training(results, Arrangement::Published, QUBGPU_OVER_JSONL, Training::wall_s);
    let sides = [Pipeline::Qubgpu, Pipeline::JsonlPacked];
    let only_data = of_training(results, Arrangement::Fair, sides, Training::wall_s);
    let fair = of_dropping(results, Arrangement::Fair, Training::wall_s);
    let Some(decides) = published.or(only_data) else { return not_measured("Training") };
    let why = format!(
        "QubGPU's figure is that of its pipeline with dropping, so ours is, too; without dropping it is {}. Its own arrangement decides, because the claim is about as many steps: both sides compute the same padded rows there, so only the waiting can fall away. Packing shortens the training by far more ({} in the fair arrangement), with or without a token file: against packed JSON Lines the token file changes it by {}.",
        change(without),
        change(fair),
        change(only_data)
    );
    (change(published), change(fair), of_reduction(decides, claims::WALL.drop / claims::WALL.jsonl), why)
}

pub(super) fn waiting(results: &Results) -> Found {
    let shares = |arrangement| {
        let of = |pipeline| Spread::of(results.trainings(arrangement, pipeline).into_iter().map(wait_share));
        of(Pipeline::Jsonl).zip(of(Pipeline::Qubgpu))
    };
    let shown = |arrangement| {
        shares(arrangement).map_or(NONE.into(), |(jsonl, qubgpu)| {
            format!("{} → {}", fine_percent(jsonl.mean), fine_percent(qubgpu.mean))
        })
    };
    let published = of_training(results, Arrangement::Published, QUBGPU_OVER_JSONL, wait_share);
    let Some(decides) = published else { return not_measured("Waiting") };
    let Figure { jsonl, ndp, .. } = claims::WAIT;
    let sides = [Pipeline::Qubgpu, Pipeline::JsonlPacked];
    let packed = of_training(results, Arrangement::Fair, sides, wait_share);
    let of_jsonl = shares(Arrangement::Published).map_or(NONE.into(), |(jsonl, _)| fine_percent(jsonl.mean));
    let why = format!(
        "The share with the token file is {} the share with JSON Lines (packed on both sides: {}). With JSON Lines it is {of_jsonl}, and no faster file can shorten a training by more than that.",
        times(Some(decides)),
        times(packed)
    );
    (shown(Arrangement::Published), shown(Arrangement::Fair), of_reduction(decides, ndp / jsonl), why)
}

pub(super) fn layers() -> Found {
    let (jsonl, qubgpu) = (Pipeline::Jsonl.stages(), Pipeline::Qubgpu.stages());
    let shown = format!("{} instead of {}", qubgpu.len(), jsonl.len());
    let verdict = if qubgpu.len() <= claims::LAYERS.1 { Verdict::Holds } else { Verdict::InPart };
    let why = format!(
        "This program's stages with JSON Lines: {}. With a token file: {}. Parsing, rendering and tokenising happen once, when the file is made; a row still has to be built, and a batch still becomes tensors.",
        jsonl.join(", "),
        qubgpu.join(", ")
    );
    (shown.clone(), shown, verdict, why)
}

/// `1,080 MB/s`
fn megabytes_per_s(rate: f64) -> String {
    let digits = if rate >= 100.0 { count(rate.round() as u64) } else { three(rate) };
    format!("{digits} MB/s")
}

pub(super) fn zero_copy(results: &Results, speeds: &Speeds) -> Found {
    let on = &results.machine.device;
    let ways = speeds.to_device();
    let fewest = ways.iter().map(|way| way.copies).fold(f64::INFINITY, f64::min);
    let alone = if ways.is_empty() {
        " What the way from the file to a GPU costs was not measured, for no GPU was there.".to_owned()
    } else {
        let each = |way: &WayToDevice<'_>| {
            let copied = match way.copies.round() as u64 {
                0 => "never copied".to_owned(),
                1 => "copied once".to_owned(),
                times => format!("copied {times} times"),
            };
            format!("{} at {} ({copied})", way.name, megabytes_per_s(way.megabytes_per_s))
        };
        let all: Vec<String> = ways.iter().map(each).collect();
        format!(
            " Whole packets get from the mapped file to a GPU, with their copies on the host: {}. That moves packets, and no batch of rows.",
            all.join("; ")
        )
    };
    let why = format!(
        "A mapped page is read in place, but its tokens are copied into a row, because rows consist of several examples, and a row is copied to the device (here: {on}): two copies at least. QubGPU's own example collates examples into a batch, pins it, and calls `.cuda()`, which are copies, too.{alone}"
    );
    let (shown, verdict) = if fewest == 0.0 {
        ("none for packets, some for rows", Verdict::InPart)
    } else {
        ("copies remain", Verdict::DoesNotHold)
    };
    ("copies remain".into(), shown.into(), verdict, why)
}
