use sparktune_kernels::causal_conv1d_silu::causal_conv1d_silu;
use sparktune_kernels::gated_delta_rule::gated_delta_rule;
use sparktune_kernels::gated_rms_norm::gated_rms_norm;

use super::{Golden, LOGITS, difference, host, model};
use crate::PackedSequence;
use crate::delta_net::Projected;
use crate::layer::Mixer;

#[test]
fn hidden_states_and_logits_are_those_of_transformers() {
    let (model, golden) = (model("checkpoint"), Golden::open("golden_forward.safetensors"));
    for n in [1, 17, 130] {
        let row = PackedSequence::single(&golden.ids(&format!("input_ids_{n}")));
        let outputs: Vec<Vec<f32>> = model.layer_outputs(&row).into_iter().map(host).collect();
        let width = model.config().hidden_size;
        let (name, from, to) = match n {
            130 => ("layer_outputs_130_pos56_72".to_owned(), 56, 72),
            _ => (format!("layer_outputs_{n}"), 0, n),
        };
        let expected = golden.numbers(&name);
        for (i, output) in outputs.iter().enumerate() {
            let part = &output[from * width..to * width];
            let expected = &expected[i * part.len()..][..part.len()];
            let error = difference(part, expected);
            assert!(error <= LOGITS, "layer {i} of length {n} differs by {error:e}");
        }
        let hidden = model.hidden(&row);
        let error = difference(&host(hidden.clone()), &golden.numbers(&format!("final_hidden_{n}")));
        assert!(error <= LOGITS, "final hidden of length {n} differs by {error:e}");
        let error = difference(&model.logits(hidden), &golden.numbers(&format!("logits_{n}")));
        assert!(error <= LOGITS, "logits of length {n} differ by {error:e}");
    }
}

#[test]
fn the_inside_of_a_layer_of_each_kind_is_that_of_transformers() {
    let model = model("checkpoint");
    let forward = Golden::open("golden_forward.safetensors");
    let golden = Golden::open("golden_intermediates.safetensors");
    let row = PackedSequence::single(&forward.ids("input_ids_17"));
    let ropes = model.rope_tables(&row.position_ids);
    let compared = std::cell::Cell::new(0);
    let check = |name: &str, got: Vec<f32>| {
        if golden.has(name) {
            let error = difference(&got, &golden.numbers(name));
            assert!(error <= LOGITS, "{name} differs by {error:e}");
            compared.set(compared.get() + 1);
        }
    };
    let mut x = model.embed(&row.input_ids);
    for (i, layer) in model.layers().iter().enumerate() {
        let normed = layer.mixer_norm.forward(x.clone());
        check(&format!("layer{i}.input_norm"), host(normed.clone()));
        let mixed = match &layer.mixer {
            Mixer::DeltaNet(net) => {
                let Projected { u_TC: u, z_TMV: z, g_TM: g, beta_TM: beta } = net.project(normed);
                let qkv = causal_conv1d_silu(u.clone(), net.conv1d.tensor(), &row.position_ids);
                let core =
                    gated_delta_rule(net.dims(), qkv.clone(), g.clone(), beta.clone(), &row.cu_seqlens);
                check(&format!("layer{i}.gdn_qkv_preconv"), host(u));
                check(&format!("layer{i}.gdn_qkv_postconv"), host(qkv));
                check(&format!("layer{i}.gdn_g"), host(g));
                check(&format!("layer{i}.gdn_beta"), host(beta));
                check(&format!("layer{i}.gdn_core"), host(core.clone()));
                check(&format!("layer{i}.gdn_z"), host(z.clone()));
                let gated = gated_rms_norm(core.clone(), z.clone(), net.norm.weight.tensor(), net.norm.eps);
                check(&format!("layer{i}.gdn_gated"), host(gated));
                net.gate_and_project(core, z)
            }
            Mixer::Attention(attention) => {
                let projected = attention.project(normed.clone(), &ropes);
                check(&format!("layer{i}.attn_q"), host(projected.q_TND));
                check(&format!("layer{i}.attn_k"), host(projected.k_TGD));
                check(&format!("layer{i}.attn_v"), host(projected.v_TGD));
                attention.forward(normed, &row, &ropes)
            }
        };
        let h = x.clone() + mixed.clone();
        let inner = layer.mlp_norm.forward(h.clone());
        let out = layer.mlp.forward(inner.clone());
        check(&format!("layer{i}.mixer_out"), host(mixed));
        check(&format!("layer{i}.mlp_in"), host(inner));
        check(&format!("layer{i}.mlp_out"), host(out.clone()));
        x = h + out;
        check(&format!("layer{i}.layer_out"), host(x.clone()));
    }
    assert!(compared.get() >= 20, "only {} intermediates compared", compared.get());
}

#[test]
fn the_text_only_bf16_layout_gives_the_logits_of_transformers() {
    let golden = Golden::open("golden_text_bf16.safetensors");
    let model = model("checkpoint_text_bf16");
    let names = golden.names();
    let ids = names.iter().find(|name| name.starts_with("input_ids")).unwrap();
    let logits = names.iter().find(|name| name.starts_with("logits")).unwrap();
    let row = PackedSequence::single(&golden.ids(ids));
    let error = difference(&model.logits(model.hidden(&row)), &golden.numbers(logits));
    assert!(error <= LOGITS, "logits differ by {error:e}");
}

#[test]
fn a_packed_row_gives_every_example_the_logits_it_has_alone() {
    let (model, golden) = (model("checkpoint"), Golden::open("golden_packed.safetensors"));
    let borders: Vec<u32> = golden.ids("cu_seqlens");
    let ids = golden.ids("input_ids");
    let row = PackedSequence::new(&ids, &borders, &vec![true; ids.len()]);
    let logits = model.logits(model.hidden(&row));
    let error = difference(&logits, &golden.numbers("logits"));
    assert!(error <= LOGITS, "packed logits differ by {error:e}");
    let vocabulary = model.config().vocab_size;
    for border in borders.windows(2) {
        let (from, to) = (border[0] as usize, border[1] as usize);
        let alone = PackedSequence::single(&ids[from..to]);
        let alone = model.logits(model.hidden(&alone));
        let error = difference(&logits[from * vocabulary..to * vocabulary], &alone);
        // They are not equal bit for bit, because the blocking of a matrix product depends on the number of
        // rows.
        assert!(error <= 5e-5, "example at {from} differs from itself alone by {error:e}");
    }
}
