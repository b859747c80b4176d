//! Compares the chunked rule with golden values of transformers, with the recurrence, and with differences of
//! an f64 recurrence.

use std::iter;
use std::path::PathBuf;

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::*;

mod case;
mod exact;

use case::{Case, Gradients, assert_close, dims, probe, random_case};
use exact::{differences, exact, exact_recurrence};

// ---- golden values ----------------------------------------------------------------------------------------

fn fixture(name: &str) -> PathBuf {
    let root = std::env::var_os("SPARKTUNE_FIXTURES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"), PathBuf::from);
    let nested = root.join("qwen35").join(name);
    if nested.exists() { nested } else { root.join(name) }
}

struct Golden(Vec<u8>);

impl Golden {
    fn open(name: &str) -> Self {
        let path = fixture(name);
        Self(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors
            .tensor(name)
            .unwrap()
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect()
    }

    /// Rows `q | k | v` of the three tensors with this prefix.
    fn qkv(&self, prefix: &str) -> Vec<f32> {
        let tokens = self.shape("in_q")[1];
        let parts = ["q", "k", "v"].map(|part| self.floats(&format!("{prefix}{part}")));
        (0..tokens)
            .flat_map(|t| {
                parts.iter().flat_map(move |part| {
                    let width = part.len() / tokens;
                    part[t * width..(t + 1) * width].iter().copied()
                })
            })
            .collect()
    }
}

fn golden_case() -> (Golden, Case) {
    let golden = Golden::open("golden_delta_rule.safetensors");
    let (keys, values) = (golden.shape("in_k"), golden.shape("in_v"));
    assert_eq!(keys[0], 1, "one sequence");
    let case = Case {
        dims: Dims { key_heads: keys[2], value_heads: values[2], key_dim: keys[3], value_dim: values[3] },
        qkv: golden.qkv("in_"),
        g: golden.floats("in_g"),
        beta: golden.floats("in_beta"),
        cu_seqlens: vec![0, keys[1] as u32],
        initial_state: Some(golden.floats("in_h0")),
    };
    (golden, case)
}

#[test]
fn outputs_are_those_of_transformers() {
    let (golden, case) = golden_case();
    for (name, outputs) in [("chunked", case.forward()), ("recurrent", case.recurrent())] {
        assert_close(name, &outputs.out, &golden.floats("out"), 5e-6);
        assert_close(name, &outputs.final_state, &golden.floats("final_state"), 5e-6);
    }
}

#[test]
fn gradients_are_those_of_transformers() {
    let (golden, case) = golden_case();
    let ones = vec![1.0; case.inputs().state_floats()];
    let gradients = case.backward(OutputGradients { out: &golden.floats("probe"), final_state: Some(&ones) });
    assert_close("qkv", &gradients.qkv, &golden.qkv("grad_"), 1e-5);
    assert_close("g", &gradients.g, &golden.floats("grad_g"), 1e-5);
    assert_close("beta", &gradients.beta, &golden.floats("grad_beta"), 1e-5);
    assert_close("h0", &gradients.initial_state, &golden.floats("grad_h0"), 1e-5);
}

// ---- an f64 recurrence and its differences ----------------------------------------------------------------

#[track_caller]
fn assert_gradients_match_differences(case: &Case, tolerance: f64) {
    let out_probe = probe(case.tokens() * case.dims.values_width(), 7);
    let state_probe = probe(case.inputs().state_floats(), 8);
    let gradients = case.backward(OutputGradients { out: &out_probe, final_state: Some(&state_probe) });
    let [qkv, g, beta, initial_state] = differences(case, &out_probe, &state_probe);
    assert_close("qkv", &gradients.qkv, &qkv, tolerance);
    assert_close("g", &gradients.g, &g, tolerance);
    assert_close("beta", &gradients.beta, &beta, tolerance);
    assert_close("initial state", &gradients.initial_state, &initial_state, tolerance);
}

#[test]
fn gradients_are_central_differences_at_every_awkward_length() {
    for length in [1, 2, 15, 16, 17, 63, 64, 65, 130] {
        assert_gradients_match_differences(
            &random_case(dims(1, 1, 3, 5), &[length], 1.0, true, length as u64),
            5e-6,
        );
    }
}

#[test]
fn gradients_of_shared_key_heads_are_sums_over_their_value_heads() {
    for r in [1, 2, 3] {
        assert_gradients_match_differences(
            &random_case(dims(2, r, 4, 3), &[5, 20], 1.0, true, r as u64),
            5e-6,
        );
    }
}

#[test]
fn gradients_stop_at_segment_borders() {
    assert_gradients_match_differences(&random_case(dims(1, 2, 4, 4), &[1, 1, 66, 1, 3], 1.0, true, 3), 5e-6);
    assert_gradients_match_differences(&random_case(dims(1, 1, 4, 4), &[2, 64, 0, 1], 1.0, false, 4), 5e-6);
}

#[test]
fn gradients_hold_under_strong_decay() {
    assert_gradients_match_differences(&random_case(dims(1, 1, 4, 4), &[70], 40.0, true, 5), 5e-6);
}

/// The gradient of the decay is tiny where the decay is strong; every value must be accurate, not only the
/// largest.
#[test]
fn small_gradients_of_strong_decays_keep_their_digits() {
    let mut case = random_case(dims(1, 1, 4, 4), &[70], 0.0, true, 6);
    case.g.fill(-9.0);
    let out_probe = probe(case.tokens() * case.dims.values_width(), 7);
    let gradients = case.backward(OutputGradients { out: &out_probe, final_state: None });
    let state_probe = vec![0.0; case.inputs().state_floats()];
    let [_, g, ..] = differences(&case, &out_probe, &state_probe);
    for (t, (&ours, &exact)) in iter::zip(&gradients.g, &g).enumerate() {
        // The difference itself is only good to about 1e-10.
        assert!(
            (f64::from(ours) - exact).abs() <= 1e-4 * exact.abs() + 1e-9,
            "token {t}: {ours} for {exact}"
        );
    }
}

#[test]
fn the_chunked_form_is_the_recurrence_at_every_awkward_size() {
    for lengths in [&[1][..], &[63], &[64], &[65], &[130], &[1, 63, 1, 64, 65, 2], &[0, 5, 0]] {
        for (key_dim, value_dim, r) in [(16, 16, 1), (3, 5, 2), (17, 40, 3), (64, 64, 2), (128, 128, 1)] {
            let case = random_case(dims(2, r, key_dim, value_dim), lengths, 2.0, true, 11);
            let (out, states) = exact_recurrence(&case, &exact(&case));
            for (name, outputs) in [("chunked", case.forward()), ("recurrent", case.recurrent())] {
                assert_close(name, &outputs.out, &out, 3e-6);
                assert_close(name, &outputs.final_state, &states, 3e-6);
            }
        }
    }
}

#[test]
fn precision_survives_a_collapse_of_the_decay_inside_a_chunk() {
    for collapse in [-30.0, -1e3, -1e6, f32::MIN, f32::NEG_INFINITY] {
        let mut case = random_case(dims(1, 1, 16, 16), &[64], 0.01, true, 12);
        case.g[20] = collapse;
        case.g[21] = collapse;
        let (out, states) = exact_recurrence(&case, &exact(&case));
        let outputs = case.forward();
        assert_close("out", &outputs.out, &out, 3e-6);
        assert_close("final state", &outputs.final_state, &states, 3e-6);
        let ones = vec![1.0; outputs.out.len()];
        let gradients =
            case.backward(OutputGradients { out: &ones, final_state: Some(&outputs.final_state) });
        let Gradients { qkv, g, beta, initial_state } = &gradients;
        assert!(
            [qkv, g, beta, initial_state].into_iter().flatten().all(|x| x.is_finite()),
            "finite at {collapse}"
        );
    }
}

#[test]
fn the_fast_exponential_is_good_to_a_few_units_in_the_last_place() {
    for i in 0..870_000 {
        let x = -(i as f32) * 1e-4;
        let (ours, exact) = (f64::from(rows::exp(x)), f64::from(x).exp());
        assert!((ours - exact).abs() <= 2e-7 * exact, "exp({x}) = {exact}, not {ours}");
    }
    assert_eq!(rows::exp(-90.0), 0.0);
    assert_eq!(rows::exp(-200.0), 0.0);
    assert!(rows::exp(f32::NAN).is_nan());
}

// ---- exactness --------------------------------------------------------------------------------------------

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn assert_packed_equals_alone(case: &Case, out_probe: &[f32]) {
    let state_probe = probe(case.inputs().state_floats(), 8);
    let packed = case.forward();
    let packed_gradients = case.backward(OutputGradients { out: out_probe, final_state: Some(&state_probe) });
    for index in 0..case.cu_seqlens.len() - 1 {
        let alone = case.segment(index);
        let outputs = alone.forward();
        assert_eq!(bits(&outputs.out), bits(&case.segment_rows(index, &packed.out)));
        assert_eq!(bits(&outputs.final_state), bits(&case.segment_states(index, &packed.final_state)));
        let gradients = alone.backward(OutputGradients {
            out: &case.segment_rows(index, out_probe),
            final_state: Some(&case.segment_states(index, &state_probe)),
        });
        assert_eq!(bits(&gradients.qkv), bits(&case.segment_rows(index, &packed_gradients.qkv)));
        assert_eq!(bits(&gradients.g), bits(&case.segment_rows(index, &packed_gradients.g)));
        assert_eq!(bits(&gradients.beta), bits(&case.segment_rows(index, &packed_gradients.beta)));
        assert_eq!(
            bits(&gradients.initial_state),
            bits(&case.segment_states(index, &packed_gradients.initial_state))
        );
    }
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

#[test]
fn nothing_of_a_broken_segment_reaches_its_neighbours() {
    let mut case = random_case(dims(1, 2, 5, 3), &[70, 5, 70, 5], 1.0, false, 13);
    let mut out_probe = probe(case.tokens() * case.dims.values_width(), 7);
    let (qkv_width, out_width) = (case.dims.qkv_width(), case.dims.values_width());
    case.qkv[75 * qkv_width..145 * qkv_width].fill(f32::NAN);
    for gate in [&mut case.g, &mut case.beta] {
        gate[75 * case.dims.value_heads..145 * case.dims.value_heads].fill(f32::NAN);
    }
    out_probe[75 * out_width..145 * out_width].fill(f32::NAN);
    // One thread, so that the next segment uses the buffers of the faulty one again.
    pool(1).install(|| assert_packed_equals_alone(&case, &out_probe));
    let out = case.forward().out;
    assert!(out[75 * out_width..145 * out_width].iter().all(|x| x.is_nan()), "the broken segment shows");
    let mut others = out[..75 * out_width].iter().chain(&out[145 * out_width..]);
    assert!(others.all(|x| x.is_finite()), "the others are whole");
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let case = random_case(dims(3, 2, 32, 48), &[100, 3, 64, 200], 1.0, true, 14);
    let out_probe = probe(case.tokens() * case.dims.values_width(), 7);
    let run = |threads: usize| {
        pool(threads).install(|| {
            let gradients = case.backward(OutputGradients { out: &out_probe, final_state: None });
            (
                bits(&case.forward().out),
                bits(&gradients.qkv),
                bits(&gradients.g),
                bits(&gradients.initial_state),
            )
        })
    };
    let single = run(1);
    for threads in [2, 3, 8] {
        assert!(run(threads) == single, "{threads} threads");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_packing_equals_its_segments_alone_bit_for_bit(
        lengths in prop::collection::vec(1_usize..140, 1..6),
        key_heads in 1_usize..3,
        r in 1_usize..4,
        key_dim in 1_usize..40,
        value_dim in 1_usize..40,
        strongest in prop::sample::select(vec![0.0_f32, 0.1, 2.0, 100.0]),
        with_state: bool,
        seed: u64,
    ) {
        let case = random_case(dims(key_heads, r, key_dim, value_dim), &lengths, strongest, with_state, seed);
        assert_packed_equals_alone(&case, &probe(case.tokens() * case.dims.values_width(), 7));
        let (chunked, (out, states)) = (case.forward(), exact_recurrence(&case, &exact(&case)));
        assert_close("out", &chunked.out, &out, 1e-5);
        assert_close("final state", &chunked.final_state, &states, 1e-5);
    }
}
