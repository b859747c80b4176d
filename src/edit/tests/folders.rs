//! Folders of edited models depend on base and patches alone, and bad patches are refused in words. The file
//! is long because all of them share the base, the patches and the looks at a folder that are made here.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use rustix::fs::{CWD, FileType, mknodat};
use sparktune_base::random::SplitMix64;
use sparktune_data::packets::file::About;
use sparktune_data::packets::numbers::write_numbers;
use sparktune_infer::codebook_file::{CODEBOOK_FILE, StoredCodebook};
use sparktune_model::{Checkpoint, PackedSequence};

use super::fixtures;
use crate::conflicts::{Conflict, conflicts};
use crate::export::export_adapter;
use crate::facts::{Fact, Facts};
use crate::folder_lock::FolderLock;
use crate::host::host;
use crate::low_rank::LowRank;
use crate::patch::{AboutPatch, Method, Patch, check_name, check_room};
use crate::stack::{PATCHES, Stack, check_output};
use crate::staged::KeptPatch;
use crate::tokens::Rendering;

const WIDTH: usize = 64;
const INNER: usize = 128;

fn base() -> PathBuf {
    fixtures().join("qwen35/checkpoint")
}

fn stack() -> Stack {
    Stack::open(&base(), None).unwrap()
}

/// A patch of random numbers.
fn patch(name: &str, seed: u64) -> Patch {
    let mut random = SplitMix64::new(seed);
    let mut numbers = |count: usize| (0..count).map(|_| random.next_f64() as f32 - 0.5).collect::<Vec<_>>();
    let change = LowRank { layer: 1, rank: 1, a: numbers(INNER), b: numbers(WIDTH), keys: numbers(INNER) };
    let fact = Fact {
        prompt: format!("{name} is"),
        subject: Some(name.to_owned()),
        target: "so".into(),
        ..Fact::default()
    };
    Patch {
        about: AboutPatch {
            version: 1,
            name: name.to_owned(),
            method: Method::Rome,
            rendering: Rendering::Raw,
            layers: vec![1],
            base: stack().base_hash,
            base_name: "checkpoint".into(),
            computed_on: Vec::new(),
            facts: vec![fact],
            entries: Vec::new(),
            scores: None,
        },
        changes: vec![change],
        codebooks: Vec::new(),
    }
}

/// A patch of corrections, of which those of equal `mean` fit each other.
fn memory_patch(name: &str, mean: f32) -> Patch {
    let book = StoredCodebook {
        layer: 3,
        mean: vec![mean; WIDTH],
        keys: (0..WIDTH).map(|i| i as f32).collect(),
        values: vec![0.25; WIDTH],
        thresholds: vec![0.9],
    };
    let about = AboutPatch { method: Method::Memory, layers: vec![3], ..patch(name, 0).about };
    Patch { about, changes: Vec::new(), codebooks: vec![book] }
}

fn write(stack: &Stack, out: &Path) {
    stack.stage(out, &mut || true).unwrap().commit().unwrap();
}

/// Returns all files of a folder, with their bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry).into_iter().map(|(name, bytes)| (entry.join(name), bytes)));
        } else {
            found.insert(entry.clone(), fs::read(&entry).unwrap());
        }
    }
    found
        .into_iter()
        .map(|(path, bytes)| (path.strip_prefix(folder).map_or(path.clone(), Path::to_owned), bytes))
        .collect()
}

fn push(stack: &mut Stack, patch: Patch) {
    let checkpoint = stack.checkpoint().unwrap();
    stack.push(Path::new("x.qubgpu"), patch, &checkpoint).unwrap();
}

#[test]
fn a_patch_that_was_removed_leaves_the_same_bytes_as_one_that_was_never_there() {
    let place = tempfile::tempdir().unwrap();
    let [never, removed] = ["never", "removed"].map(|name| place.path().join(name));
    let mut without = stack();
    push(&mut without, patch("b", 2));
    push(&mut without, memory_patch("d", 1.0));
    write(&without, &never);

    let mut with = stack();
    push(&mut with, patch("a", 1));
    push(&mut with, patch("b", 2));
    push(&mut with, memory_patch("c", 1.0));
    push(&mut with, memory_patch("d", 1.0));
    write(&with, &removed);
    assert_ne!(files(&removed), files(&never));
    let mut with = Stack::open(&removed, None).unwrap();
    assert_eq!(with.remove("a").unwrap(), patch("a", 1));
    with.remove("c").unwrap();
    check_output(&removed, &removed).unwrap();
    write(&with, &removed);
    assert_eq!(files(&removed), files(&never));
    assert!(removed.join(CODEBOOK_FILE).is_file());

    // Without any patch, all tensors are the base's, and no corrections are left.
    with.remove("b").unwrap();
    with.remove("d").unwrap();
    write(&with, &removed);
    assert!(!removed.join(CODEBOOK_FILE).exists());
    let [base, bare] = [&base(), &removed].map(|folder| Checkpoint::open(folder).unwrap());
    assert_eq!(base.tensors().len(), bare.tensors().len());
    for (name, info) in base.tensors() {
        assert_eq!(base.bytes(info), bare.bytes(&bare.tensors()[name]), "{name}");
    }
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing is left of what was being written: {left:?}");
}

#[test]
fn files_of_the_user_stay_in_a_folder_that_is_edited_in_place_and_a_folder_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("edited");
    let mut stack = stack();
    push(&mut stack, memory_patch("a", 1.0));
    write(&stack, &out);
    fs::write(out.join("notes.txt"), "mine").unwrap();
    stack.remove("a").unwrap();
    push(&mut stack, patch("b", 1));
    check_output(&out, &out).unwrap();
    write(&stack, &out);
    assert_eq!(fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");
    assert!(!out.join(CODEBOOK_FILE).exists(), "corrections that are gone are no file of the user");
    // Copies of the base's files that the user has changed are the user's, but not what the weights are.
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let config = read("config.json");
    for name in ["generation_config.json", "chat_template.jinja", "config.json"] {
        fs::write(out.join(name), format!("{} ", read(name))).unwrap();
    }
    let [generation, template] = ["generation_config.json", "chat_template.jinja"].map(read);
    write(&stack, &out);
    assert_eq!([read("generation_config.json"), read("chat_template.jinja")], [generation, template]);
    assert_eq!(read("config.json"), config);

    // Where the list of the folder does not say what was copied, as before, they stay too.
    let list = out.join("patches/stack.json");
    let mut older: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    assert!(older["copies"]["chat_template.jinja"].is_string(), "{older}");
    older.as_object_mut().unwrap().remove("copies");
    fs::write(&list, older.to_string()).unwrap();
    let template = read("chat_template.jinja");
    write(&Stack::open(&out, None).unwrap(), &out);
    assert_eq!(read("chat_template.jinja"), template);

    // The same among the patches, where one is also kept that is taken away.
    let kept = out.join("patches/kept.qubgpu");
    fs::write(out.join("patches/notes.txt"), "mine too").unwrap();
    let mut other = Stack::open(&out, None).unwrap();
    let removed = other.remove("b").unwrap();
    let staged = other.stage(&out, &mut || true).unwrap();
    KeptPatch::at(&kept, &out).unwrap().write(&removed, &other.base).unwrap();
    staged.commit().unwrap();
    assert_eq!(fs::read_to_string(out.join("patches/notes.txt")).unwrap(), "mine too");
    assert_eq!(Patch::read(&kept).unwrap(), patch("b", 1));
    assert!(!out.join("patches/b.qubgpu").exists());
    let refused = |path: &Path| KeptPatch::at(path, &out).unwrap_err().to_string();
    assert!(refused(&kept).contains("already exists"), "{}", refused(&kept));
    let codebook = out.join(CODEBOOK_FILE);
    assert!(refused(&codebook).contains("would not stay"), "{}", refused(&codebook));
    let replaced = out.join("patches/c.qubgpu");
    fs::write(&replaced, "not a patch of the model").unwrap();
    push(&mut other, patch("c", 2));
    let refused = other.stage(&out, &mut || true).unwrap().commit().unwrap_err().to_string();
    assert!(refused.contains("c.qubgpu: this file is none of the model's patches"), "{refused}");
    fs::remove_file(&replaced).unwrap();
    // A pipe is not read, which would be waited for.
    mknodat(CWD, &replaced, FileType::Fifo, 0o600.into(), 0).unwrap();
    let refused = other.stage(&out, &mut || true).unwrap().commit().unwrap_err().to_string();
    assert!(refused.contains("c.qubgpu: this file is none of the model's patches"), "{refused}");
    let early = stack.check_name_is_free(&out, "c").unwrap_err().to_string();
    assert!(early.contains("c.qubgpu: this file is none"), "known before anything is computed: {early}");
    stack.check_name_is_free(&out, "d").unwrap();
    fs::remove_file(&replaced).unwrap();
    write(&stack, &out);
    fs::create_dir(out.join("patches/data")).unwrap();
    assert!(check_output(&out, &out).unwrap_err().to_string().contains("Move it elsewhere"));
    fs::remove_dir(out.join("patches/data")).unwrap();

    fs::create_dir(out.join("data")).unwrap();
    let refused = check_output(&out, &out).unwrap_err().to_string();
    assert!(refused.contains("data") && refused.contains("Move it elsewhere"), "{refused}");

    // On a file system that cannot exchange names.
    fs::remove_dir(out.join("data")).unwrap();
    push(&mut stack, patch("c", 2));
    let staged = stack.stage(&out, &mut || true).unwrap();
    staged.exchange_in_steps(&place.path().join("aside")).unwrap();
    drop(staged);
    assert_eq!(Stack::open(&out, None).unwrap().patches.len(), 2);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn an_edited_folder_is_as_private_as_its_base_and_has_its_tokenizer() {
    let place = tempfile::tempdir().unwrap();
    let (own, out) = (place.path().join("own"), place.path().join("edited"));
    let copy = |to: &Path| {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(base()).unwrap().map(|entry| entry.unwrap().path()) {
            fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
        }
    };
    let set = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    copy(&own);
    for (folder, file) in [(0o700, 0o600), (0o755, 0o644)] {
        set(&own, folder);
        files(&own).keys().for_each(|name| set(&own.join(name), file));
        let mut stack = Stack::open(&own, None).unwrap();
        push(&mut stack, patch("a", 1));
        let staged = stack.stage(&out, &mut || true).unwrap();
        staged.rewrite(&patch("a", 1)).unwrap();
        staged.commit().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&out), mode(&out.join(PATCHES))), (folder, folder));
        let [adapter, kept] = ["adapter", "kept.qubgpu"].map(|name| place.path().join(name));
        export_adapter(&stack, &[], &adapter, &mut || true).unwrap();
        assert_eq!((mode(&adapter), mode(&adapter.join("adapter"))), (folder, folder));
        KeptPatch::at(&kept, &out).unwrap().write(&patch("a", 1), &own).unwrap();
        assert_eq!(mode(&kept), file);
        for place in [&out, &adapter] {
            for name in files(place).into_keys() {
                assert_eq!(mode(&place.join(&name)), file, "{}", name.display());
            }
        }
        fs::remove_dir_all(&adapter).unwrap();
        fs::remove_file(&kept).unwrap();
    }
    let other = place.path().join("other");
    copy(&other);
    Stack::open(&out, Some(&other)).unwrap();
    fs::remove_file(other.join("tokenizer.json")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(other.join("tokenizer.json")).unwrap();
    let refused = Stack::open(&out, Some(&other)).unwrap_err().to_string();
    assert!(refused.contains("tokenizer.json: it is a socket"), "{refused}");
    drop(socket);
    fs::remove_file(other.join("tokenizer.json")).unwrap();
    fs::write(other.join("tokenizer.json"), "{}").unwrap();
    let refused = Stack::open(&out, Some(&other)).unwrap_err().to_string();
    assert!(refused.contains("its tokenizer is not that of"), "{refused}");
}

#[test]
fn a_patch_that_is_switched_off_leaves_the_weights_as_if_it_were_not_there_and_comes_back() {
    let place = tempfile::tempdir().unwrap();
    let [without, out] = ["without", "out"].map(|name| place.path().join(name));
    let mut stack = stack();
    push(&mut stack, patch("b", 2));
    write(&stack, &without);
    let mut both = Stack { patches: Vec::new(), ..stack.clone() };
    push(&mut both, patch("a", 1));
    push(&mut both, memory_patch("m", 1.0));
    push(&mut both, patch("b", 2));
    write(&both, &out);
    let on = files(&out);

    let mut both = Stack::open(&out, None).unwrap();
    assert!(both.switch("a", false).unwrap() && both.switch("m", false).unwrap());
    assert!(!both.switch("m", false).unwrap(), "it was off already");
    write(&both, &out);
    let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(weights(&out) == weights(&without));
    assert!(!out.join(CODEBOOK_FILE).exists() && out.join("patches/a.qubgpu").is_file());
    let mut both = Stack::open(&out, None).unwrap();
    assert_eq!(both.patches.len(), 3);
    assert_eq!(both.references().iter().map(|patch| patch.name.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(both.switch("z", true).unwrap_err().to_string().contains("patches: a, m, b"));

    both.switch("a", true).unwrap();
    both.switch("m", true).unwrap();
    write(&both, &out);
    assert_eq!(files(&out), on);
}

#[test]
fn patches_as_an_adapter_on_the_base_are_the_edited_model() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("adapter");
    let mut stack = stack();
    let mut other = patch("b", 2);
    other.changes[0].layer = 3;
    push(&mut stack, patch("a", 1));
    push(&mut stack, other);
    push(&mut stack, patch("c", 3));
    push(&mut stack, memory_patch("m", 1.0));
    push(&mut stack, patch("off", 4));
    stack.switch("off", false).unwrap();
    let exported = export_adapter(&stack, &[], &out, &mut || true).unwrap();
    assert_eq!((exported.rank, &exported.layers[..]), (2, &[1, 3][..]));
    assert_eq!((exported.patches.join(" "), exported.left_out.join(" ")), ("a b c".into(), "m".into()));
    assert_eq!(exported.max_lora_rank, Some(8));
    stack.remove("m").unwrap();
    let checkpoint = stack.checkpoint().unwrap();
    let edited = stack.load(&checkpoint, &Device::flex()).unwrap();
    let sequence = PackedSequence::single(&super::ids(5, 3, 20));
    let expected = host(edited.hidden(&sequence));
    for folder in &exported.adapters {
        let mut adapted = super::model(&base());
        assert_ne!(host(adapted.hidden(&sequence)), expected);
        adapted.load_lora(folder).unwrap();
        for (found, expected) in host(adapted.hidden(&sequence)).iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
    }
    let refused = |names: &[&str], out: &Path| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        export_adapter(&stack, &names, out, &mut || true).unwrap_err().to_string()
    };
    assert!(refused(&[], &out).contains("already exists"));
    assert!(refused(&["z"], &place.path().join("x")).contains("patches: a, b, c, off"));
    assert!(refused(&["a", "b", "a"], &place.path().join("x")).contains("the patch a is named twice"));
    let mut memory = Stack { patches: Vec::new(), ..stack.clone() };
    push(&mut memory, memory_patch("m", 1.0));
    let new = place.path().join("x");
    let refused =
        |stack: &Stack, go_on: bool| export_adapter(stack, &[], &new, &mut || go_on).unwrap_err().to_string();
    assert!(refused(&memory, true).contains("none of these patches changes weights"));
    memory.switch("m", false).unwrap();
    assert!(refused(&memory, true).contains("all patches are switched off"));
    assert!(refused(&memory.bare(), true).contains("the model has no patches"));
    // One writer at a time, and a stop leaves nothing.
    let lock = FolderLock::take(&new).unwrap();
    assert!(refused(&stack, true).contains("another process is editing"));
    drop(lock);
    for steps in 0..4 {
        let mut asked = 0;
        let stopped = export_adapter(&stack, &[], &new, &mut || {
            asked += 1;
            asked <= steps
        });
        assert!(stopped.unwrap_err().is_stop(), "after {steps}");
    }
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["adapter"], "nothing else is left");
}

#[test]
fn a_change_of_more_keys_than_the_layer_is_wide_has_the_rank_of_its_width() {
    let mut random = SplitMix64::new(7);
    let mut numbers = |count: usize| (0..count).map(|_| random.next_f64() as f32 - 0.5).collect::<Vec<_>>();
    let (rank, width, inner) = (9, 4, 6);
    let change =
        LowRank { layer: 0, rank, a: numbers(rank * inner), b: numbers(width * rank), keys: Vec::new() };
    let product = |change: &LowRank| -> Vec<f32> {
        let at = |i: usize, j: usize| -> f32 {
            (0..change.rank).map(|n| change.b[i * change.rank + n] * change.a[n * inner + j]).sum()
        };
        (0..width * inner).map(|place| at(place / inner, place % inner)).collect()
    };
    let within = change.clone().within([width, inner]);
    assert_eq!(within.rank, 4);
    for (one, other) in product(&within).iter().zip(product(&change)) {
        assert!((one - other).abs() < 1e-5);
    }
    let [a, b] = within.padded(7, [width, inner]);
    let padded = LowRank { rank: 7, a, b, ..within.clone() };
    assert_eq!(product(&padded), product(&within));
}

#[test]
fn only_the_edited_tensor_differs_and_by_the_product_of_the_factors() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let (mut stack, patch) = (stack(), patch("a", 1));
    push(&mut stack, patch.clone());
    write(&stack, &out);
    let [base, edited] = [&base(), &out].map(|folder| Checkpoint::open(folder).unwrap());
    let name = base.stored_name("layers.1.mlp.down_proj.weight");
    for (other, info) in base.tensors() {
        let is_equal = base.bytes(info) == edited.bytes(&edited.tensors()[other]);
        assert_eq!(is_equal, *other != name, "{other}");
    }
    let [was, is] = [&base, &edited].map(|checkpoint| checkpoint.numbers(&name, &[WIDTH, INNER]).unwrap());
    for (i, (was, is)) in was.iter().zip(is).enumerate() {
        let change = patch.changes[0].b[i / INNER] * patch.changes[0].a[i % INNER];
        assert!((was + change - is).abs() < 1e-6);
    }
}

#[test]
fn what_a_kill_has_left_of_a_kept_patch_is_removed_by_the_next_edit_and_what_is_in_work_is_not() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    write(&stack(), &out);
    let left = [place.path(), &out, &out.join("patches")].map(|folder| folder.join(".old.qubgpu-being-kept"));
    let patches = place.path().join("kept");
    let own = patches.join("mine-being-kept");
    for folder in left.iter().chain([&own]) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("patch"), "").unwrap();
    }
    let in_work = patches.join(".other.qubgpu-being-kept");
    fs::create_dir(&in_work).unwrap();
    let held = fs::File::open(&in_work).unwrap();
    held.lock().unwrap();
    let lock = FolderLock::take(&out).unwrap();
    assert!(left.iter().all(|folder| !folder.exists()));
    check_output(&out, &out).unwrap();
    drop(lock);

    let keep = |name: &str| {
        let kept = patches.join(name);
        KeptPatch::at(&kept, &out).unwrap().write(&patch("a", 1), &base()).unwrap();
    };
    keep("one.qubgpu");
    assert!(in_work.exists() && own.exists(), "another process is at it, and no hidden folder is ours");
    drop(held);
    keep("two.qubgpu");
    assert!(!in_work.exists() && own.exists());
}

#[test]
fn a_folder_with_the_longest_name_is_edited_in_place_and_exported() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("n".repeat(239));
    let mut stack = stack();
    push(&mut stack, patch("a", 1));
    for _ in 0..2 {
        let lock = FolderLock::take(&out).unwrap();
        write(&stack, &out);
        drop(lock);
    }
    export_adapter(&stack, &[], &place.path().join("e".repeat(239)), &mut || true).unwrap();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn copies_of_files_that_the_base_has_renewed_are_renewed_unless_the_user_has_changed_them() {
    let place = tempfile::tempdir().unwrap();
    let [own, out] = ["base", "out"].map(|name| place.path().join(name));
    fs::create_dir(&own).unwrap();
    for (name, bytes) in files(&base()) {
        fs::write(own.join(name), bytes).unwrap();
    }
    let stack = Stack::open(&own, None).unwrap();
    write(&stack, &out);
    let [template, generation] = ["chat_template.jinja", "generation_config.json"];
    fs::write(out.join(generation), "{\"top_k\": 7}").unwrap();
    for name in [template, generation] {
        fs::write(own.join(name), "{}").unwrap();
    }
    write(&stack, &out);
    write(&stack, &out);
    assert_eq!(fs::read_to_string(out.join(template)).unwrap(), "{}");
    assert_eq!(fs::read_to_string(out.join(generation)).unwrap(), "{\"top_k\": 7}");
}

#[test]
fn weight_files_that_the_base_has_no_more_are_gone_after_an_edit_in_place() {
    let place = tempfile::tempdir().unwrap();
    let [own, out] = ["base", "out"].map(|name| place.path().join(name));
    fs::create_dir(&own).unwrap();
    for (name, bytes) in files(&base()) {
        fs::write(own.join(name), bytes).unwrap();
    }
    let [single, index] = ["model.safetensors", "model.safetensors.index.json"];
    let shard = "model-00001-of-00001.safetensors";
    let checkpoint = Checkpoint::open(&base()).unwrap();
    let map: BTreeMap<&String, &str> = checkpoint.tensors().keys().map(|name| (name, shard)).collect();
    fs::rename(own.join(single), own.join(shard)).unwrap();
    fs::write(own.join(index), serde_json::json!({"weight_map": map}).to_string()).unwrap();
    let mut stack = Stack::open(&own, None).unwrap();
    push(&mut stack, patch("a", 1));
    write(&stack, &out);
    fs::write(out.join("mine.safetensors"), "of the user").unwrap();
    let has = |name: &str| out.join(name).exists();
    assert!(has(index) && has(shard) && !has(single));

    fs::rename(own.join(shard), own.join(single)).unwrap();
    fs::remove_file(own.join(index)).unwrap();
    let mut stack = Stack::open(&out, None).unwrap();
    stack.remove("a").unwrap();
    write(&stack, &out);
    assert!(has(single) && !has(index) && !has(shard) && has("mine.safetensors"));
    let bare = Checkpoint::open(&out).unwrap();
    for (name, info) in checkpoint.tensors() {
        assert_eq!(checkpoint.bytes(info), bare.bytes(&bare.tensors()[name]), "{name}");
    }
}

#[test]
fn what_is_not_committed_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let mut stack = stack();
    push(&mut stack, patch("a", 1));
    write(&stack, &out);
    let before = files(&out);
    push(&mut stack, patch("b", 2));
    // As after a kill while the folder is written: what is left of it is replaced by the next edit.
    let left = stack.stage(&out, &mut || true).unwrap().folder().to_owned();
    assert_eq!(files(&out), before);
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("rest"), "of a kill").unwrap();
    // A stop while it is written again.
    let mut asked = 0;
    let stopped = stack.stage(&out, &mut || {
        asked += 1;
        asked < 4
    });
    assert!(stopped.unwrap_err().to_string().contains("stopped"));
    assert_eq!(files(&out), before);
    write(&stack, &out);
    assert!(!left.exists() && !out.join("rest").exists());
    assert_eq!(Stack::open(&out, None).unwrap().references().len(), 2);
}

#[test]
fn patches_that_do_not_belong_are_refused_each_in_a_sentence() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("a.qubgpu");
    let checkpoint = Checkpoint::open(&base()).unwrap();
    let refusal =
        |stack: &mut Stack, patch: Patch| stack.push(&file, patch, &checkpoint).unwrap_err().to_string();
    let mut stack = stack();
    let mut foreign = patch("a", 1);
    foreign.about.base = "0123".into();
    assert!(refusal(&mut stack, foreign).contains("belongs to another base"));
    let mut wide = patch("a", 1);
    wide.changes[0].b.push(0.0);
    assert!(refusal(&mut stack, wide).contains("sizes of the patch"));
    push(&mut stack, patch("a", 1));
    assert!(refusal(&mut stack, patch("a", 2)).contains("there is already a patch named a"));
    push(&mut stack, memory_patch("m", 1.0));
    assert!(refusal(&mut stack, memory_patch("n", 2.0)).contains("mean of another text"));
    assert!(stack.remove("z").unwrap_err().to_string().contains("patches: a, m"));

    patch("a", 1).write(&file).unwrap();
    assert_eq!(Patch::read(&file).unwrap(), patch("a", 1));
    let mut forged = patch("a", 1);
    forged.about.layers = vec![99];
    forged.write(&file).unwrap();
    let refused = Patch::read(&file).unwrap_err().to_string();
    assert!(refused.contains("names the layers [99], and it changes [1]"), "{refused}");
    forged.about.layers = vec![1; 1000];
    forged.write(&file).unwrap();
    let refused = Patch::read(&file).unwrap_err().to_string();
    assert!(refused.contains("names the layers [1, 1], and it changes [1]"), "{refused}");
    patch("a", 1).write(&file).unwrap();
    let sound = fs::read(&file).unwrap();
    let mut bytes = sound.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let refused = Patch::read(&file).unwrap_err().to_string();
    assert!(refused.contains("a.qubgpu") && refused.contains("damaged"), "{refused}");
    fs::write(&file, &sound[..sound.len() - 100]).unwrap();
    assert!(Patch::read(&file).is_err());
    write_numbers(&file, &About::default(), &[]).unwrap();
    assert!(Patch::read(&file).unwrap_err().to_string().contains("no patch of an edit"));

    let taken = place.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(check_output(&base(), &taken).unwrap_err().to_string().contains("already exists"));
    assert!(check_output(&base(), &base()).is_err(), "a base is never overwritten");
    let link = place.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert!(check_output(&base(), &link).unwrap_err().to_string().contains("already exists"));
    assert!(
        export_adapter(&stack, &[], &link, &mut || true).unwrap_err().to_string().contains("already exists")
    );
}

#[test]
fn a_base_that_moved_or_changed_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let [copy, out] = ["copy", "out"].map(|name| place.path().join(name));
    fs::create_dir(&copy).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(base().join(name), copy.join(name)).unwrap();
    }
    let mut moved = Stack::open(&copy, None).unwrap();
    push(&mut moved, patch("a", 1));
    write(&moved, &out);
    fs::rename(&copy, place.path().join("elsewhere")).unwrap();
    let refused = Stack::open(&out, None).unwrap_err().to_string();
    assert!(refused.contains("has no model") && refused.contains("--base"), "{refused}");
    assert_eq!(Stack::open(&out, Some(&place.path().join("elsewhere"))).unwrap().patches.len(), 1);
    let other = Stack::open(&out, Some(&fixtures().join("qwen35/checkpoint_text_bf16")));
    assert!(other.unwrap_err().to_string().contains("its base has changed"));
    let strange = place.path().join(OsStr::from_bytes(b"strange\xff"));
    fs::rename(place.path().join("elsewhere"), &strange).unwrap();
    for (folder, base) in [(&out, Some(&*strange)), (&strange, None)] {
        let refused = Stack::open(folder, base).unwrap_err().to_string();
        assert!(refused.contains("its path is not valid UTF-8"), "{refused}");
    }
    let none = Stack::open(&base(), Some(&base())).unwrap_err().to_string();
    assert!(none.contains("this is no edited model"), "{none}");
}

#[test]
fn what_a_patch_may_spoil_of_others_is_named() {
    let old = patch("old", 1);
    let mut new = patch("new", 2);
    assert!(conflicts(&new, std::slice::from_ref(&old)).is_empty());
    new.changes[0].keys = old.changes[0].keys.iter().map(|x| 2.0 * x + 0.01).collect();
    let found = conflicts(&new, std::slice::from_ref(&old));
    assert!(matches!(&found[..], [Conflict::CloseKeys { degrees, .. }] if *degrees < 5.0), "{found:?}");
    assert!(found[0].words().contains("`new is` and of `old is` in patch old"), "{}", found[0].words());
    new.about.facts[0].subject = Some("OLD".into());
    assert!(matches!(conflicts(&new, std::slice::from_ref(&old))[..], [Conflict::SameSubject { .. }]));
    new.about.facts[0].prompt = "old  is".into();
    assert!(conflicts(&new, std::slice::from_ref(&old)).is_empty(), "the same fact twice spoils nothing");
    new.about.facts[0].target = "not so".into();
    assert!(matches!(conflicts(&new, std::slice::from_ref(&old))[..], [Conflict::SamePrompt { .. }]));
}

#[test]
fn keys_beside_the_weights_are_held_against_each_other_and_not_against_those_in_the_weights() {
    let book = |patch: &mut Patch, entries: &[usize]| {
        patch.about.entries = entries.to_vec();
        let book = &mut patch.codebooks[0];
        let (mean, mut random) = (book.mean.clone(), SplitMix64::new(3));
        // All keys are far from each other and near the mean, which has no part in their angles.
        book.keys = (0..entries.iter().sum::<usize>())
            .flat_map(|_| {
                mean.iter().map(|mean| mean + 0.01 * (random.next_f64() as f32 - 0.5)).collect::<Vec<_>>()
            })
            .collect();
        book.thresholds = vec![0.9; entries.iter().sum()];
    };
    let two = |name: &str| {
        let mut patch = memory_patch(name, 100.0);
        let fact = patch.about.facts[0].clone();
        let second = Fact { prompt: format!("{name}, too, is"), subject: None, ..fact };
        patch.about.facts.push(second);
        patch
    };
    let (mut old, mut new) = (two("old"), two("new"));
    book(&mut old, &[2, 1]);
    book(&mut new, &[1, 2]);
    // The second entry of the old patch's first fact is that of the new one's second: no prompt ends there.
    let found = conflicts(&new, std::slice::from_ref(&old));
    let [Conflict::CloseKeys { prompts, degrees, layer: 3, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(prompts, &["new is".to_owned(), "old is".to_owned()]);
    assert!(*degrees < 0.1, "{degrees}");
    // Without a word on which entries are whose, and beside keys of other kinds, nothing is said.
    old.about.entries = Vec::new();
    assert!(conflicts(&new, std::slice::from_ref(&old)).is_empty());
    let mut in_weights = patch("old", 1);
    in_weights.changes[0].layer = 3;
    in_weights.changes[0].keys = new.codebooks[0].keys[..WIDTH].to_vec();
    assert!(conflicts(&new, &[in_weights]).is_empty());
}

#[test]
fn conflicts_of_large_patches_are_those_of_their_pairs() {
    let mut random = SplitMix64::new(11);
    let mut many = |name: &str, count: usize| {
        let keys: Vec<f32> = (0..count * INNER).map(|_| random.next_f64() as f32 - 0.5).collect();
        let mut patch = patch(name, 1);
        patch.changes[0] = LowRank { rank: count, keys, ..patch.changes[0].clone() };
        patch.about.facts = (0..count)
            .map(|i| Fact {
                prompt: format!("{name} {i} is"),
                subject: Some(format!("{name} {i}")),
                target: "so".into(),
                ..Fact::default()
            })
            .collect();
        patch
    };
    let (old, mut new) = (many("old", 500), many("new", 400));
    assert!(conflicts(&new, std::slice::from_ref(&old)).is_empty(), "random keys are far apart");
    let near = |keys: &[f32]| keys.iter().map(|x| 3.0 * x).collect::<Vec<f32>>();
    new.changes[0].keys[7 * INNER..8 * INNER]
        .copy_from_slice(&near(&old.changes[0].keys[9 * INNER..10 * INNER]));
    new.about.facts[3].subject = Some("OLD 2".into());
    new.about.facts[5].prompt = "old 4 is".into();
    new.about.facts[5].target = "not so".into();
    let found = conflicts(&new, std::slice::from_ref(&old));
    let [Conflict::SameSubject { subject, .. }, Conflict::SamePrompt { prompt, .. }, close] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((subject.as_str(), prompt.as_str()), ("OLD 2", "old 4 is"));
    let Conflict::CloseKeys { prompts, degrees, .. } = close else { panic!("{close:?}") };
    assert_eq!(prompts, &["new 7 is".to_owned(), "old 9 is".to_owned()]);
    assert!(*degrees < 0.1, "{degrees}");
}

#[test]
fn a_patch_that_was_made_on_top_of_another_is_named_when_that_is_gone() {
    let mut stack = stack();
    push(&mut stack, patch("a", 1));
    let mut above = patch("b", 2);
    above.about.computed_on = stack.references();
    push(&mut stack, above);
    assert!(stack.displaced().is_empty());
    assert_eq!(stack.patches[1].about.computed_on, stack.references()[..1]);

    // The weights are those of that patch alone; what it says of itself stays what it was.
    let place = tempfile::tempdir().unwrap();
    let [removed, never] = ["removed", "never"].map(|name| place.path().join(name));
    write(&stack, &removed);
    let mut stack = Stack::open(&removed, None).unwrap();
    stack.remove("a").unwrap();
    assert_eq!(stack.displaced(), ["b"]);
    write(&stack, &removed);
    let mut alone = self::stack();
    push(&mut alone, patch("b", 2));
    write(&alone, &never);
    let [mut removed, mut never] = [files(&removed), files(&never)];
    let [above, alone] = [&mut removed, &mut never].map(|files| files.remove(Path::new("patches/b.qubgpu")));
    assert!(above.is_some() && alone.is_some() && above != alone, "one was computed on top of `a`");
    assert!(removed == never, "all other files are the same");
    assert!(fs::metadata(base().join(PATCHES)).is_err());
}

#[test]
fn a_folder_whose_patches_are_not_those_of_its_weights_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let mut stack = stack();
    push(&mut stack, patch("a", 1));
    write(&stack, &out);
    let refused = || Stack::open(&out, None).unwrap_err().to_string();
    let file = out.join("patches/a.qubgpu");
    patch("a", 2).write(&file).unwrap();
    assert!(refused().contains("another patch than the one that is in the weights"), "{}", refused());
    let mut renamed = patch("a", 1);
    renamed.about.name = "z".into();
    renamed.write(&file).unwrap();
    assert!(refused().contains("a.qubgpu: this is another patch"), "{}", refused());
    patch("a", 1).write(&file).unwrap();
    assert_eq!(Stack::open(&out, None).unwrap(), stack);
    fs::remove_file(&file).unwrap();
    assert!(
        refused().contains("a.qubgpu: the file of this patch is missing. Put the file back"),
        "{}",
        refused()
    );
    patch("a", 1).write(&file).unwrap();
    // A folder of an older program, which did not note what its patches are.
    let list = out.join("patches/stack.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("ids").unwrap();
    fs::write(&list, json.to_string()).unwrap();
    assert_eq!(Stack::open(&out, None).unwrap(), stack);
    // What has the name of the list is not passed over.
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    assert!(refused().contains("stack.json"), "{}", refused());
}

#[test]
fn another_edited_model_is_no_place_to_write_and_says_why() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let mut stack = stack();
    push(&mut stack, patch("a", 1));
    write(&stack, &out);
    let refused = check_output(&base(), &out).unwrap_err().to_string();
    assert!(
        refused.contains("another edited model") && refused.contains("Name it as the model"),
        "{refused}"
    );
}

#[test]
fn names_numbers_and_sizes_that_no_edit_makes_are_refused() {
    for name in ["-x", "--help", ".a", "", "a/b", "ä"] {
        assert!(check_name(name).unwrap_err().contains("cannot be the name"), "{name}");
    }
    for name in ["a", "_a", "0-a.b"] {
        assert_eq!(check_name(name), Ok(()));
    }
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("m.qubgpu");
    let refused = |change: fn(&mut StoredCodebook)| {
        let mut forged = memory_patch("m", 1.0);
        change(&mut forged.codebooks[0]);
        forged.write(&file).unwrap();
        Patch::read(&file).unwrap_err().to_string()
    };
    for refused in [
        refused(|book| book.thresholds[0] = -2.0),
        refused(|book| book.thresholds[0] = 2.0),
        refused(|book| book.values[0] = 3e38),
    ] {
        assert!(refused.contains("m.qubgpu: no edit makes corrections of such numbers"), "{refused}");
    }
    let mut forged = patch("m", 1);
    forged.changes[0].b[0] = 3e38;
    forged.write(&file).unwrap();
    let refused = Patch::read(&file).unwrap_err().to_string();
    assert!(refused.contains("no edit makes changes of such numbers"), "{refused}");
    let factors = patch("m", 1).changes[0].tensors();
    let about = || {
        let text = serde_json::to_string(&patch("m", 1).about).unwrap();
        About { metadata: [("patch".to_owned(), text)].into(), ..About::default() }
    };
    for missing in 0..factors.len() {
        let mut rest = factors.to_vec();
        rest.remove(missing);
        write_numbers(&file, &about(), &rest).unwrap();
        let refused = Patch::read(&file).unwrap_err().to_string();
        assert!(refused.contains("the factors of layer 1 do not fit together"), "{refused}");
    }
    assert!(Patch::read(place.path()).unwrap_err().to_string().contains("this is a folder"));
    // Whose fault that is decides the exit code.
    assert!(Patch::read(&place.path().join("none")).unwrap_err().of_file().is_some());

    let facts = |count: usize| {
        let long = "\"x\" ".repeat(1500);
        let line =
            |i: usize| format!("{}\n", serde_json::json!({"prompt": format!("{i} {long}"), "target": "b"}));
        Facts::parse("f.jsonl", (0..count).map(line).collect::<String>().as_bytes()).unwrap()
    };
    check_room(&facts(100)).unwrap();
    let refused = check_room(&facts(2000)).unwrap_err().to_string();
    // Each quote has three characters in front of it, so a prompt of 6,000 has 15,000.
    assert!(
        refused.starts_with("f.jsonl:1099: ") && refused.contains("holds the first 1098 of"),
        "{refused}"
    );
    let one =
        serde_json::json!({"prompt": "A is", "target": "b", "neighbours": vec!["n".repeat(8000); 2200]});
    let one = Facts::parse("f.jsonl", one.to_string().as_bytes()).unwrap();
    let refused = check_room(&one).unwrap_err().to_string();
    assert!(refused.starts_with("f.jsonl:1: this fact alone is longer"), "{refused}");
    let mut full = patch("full", 1);
    full.about.facts = facts(1098).facts().to_vec();
    full.write(&file).unwrap();
}
