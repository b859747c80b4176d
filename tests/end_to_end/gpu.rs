//! The whole program on a CUDA device: a GPU, or the emulated one (`kernels/emulator/driver.sh`).

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::Value;

use crate::sparktune::{Done, Place, checkpoint, done, events};

/// The most compilations of `doctor`, which computes losses and gradients of the demo's model.
const DOCTOR_COMPILES: usize = 105;
/// The most compilations of a first run with LoRA to its end, with the trials of tiles, and with self-tests
/// whose model has heads of other widths.
const RUN_COMPILES: usize = 215;

#[test]
fn a_device_passes_doctor_and_trains_a_run_that_is_exported() {
    let place = Place::new();
    place.chats(24);
    let findings = place.sparktune(["doctor", "--json"]).last();
    let of = |name: &str| {
        let all = findings.as_array().unwrap().iter();
        all.filter(|finding| finding["what"].as_str().unwrap().contains(name))
            .cloned()
            .collect::<Vec<Value>>()
    };
    let tests = of(" (GPU)");
    if tests.iter().all(|test| test["passed"].is_null()) {
        assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "{findings:#}");
        eprintln!("skipped: {}", tests[0]);
        return;
    }
    assert_eq!(tests.len(), 4, "{tests:#?}");
    let clock = tests.iter().find(|test| test["what"] == "clock under load (GPU)").unwrap();
    let others = tests.iter().filter(|test| test["what"] != clock["what"]);
    assert!(others.clone().all(|test| test["passed"] == true), "{tests:#?}");
    // The emulated device reports no clock.
    assert!(clock["status"] == "unknown" || clock["status"] == "ok", "{clock}");

    let mut train =
        place.command(["train", "--non-interactive", "--json", "--device", "cuda", "--data", "train.jsonl"]);
    let few = [
        "--pack-length",
        "64",
        "--max-steps",
        "3",
        "--mtp",
        "none",
        "--rank",
        "8",
        "--learning-rate",
        "0.01",
        "--products",
        "auto",
    ];
    train.arg("--model").arg(checkpoint()).args(few).env("SPARKTUNE_SAMPLE_COUNT", "0");
    train.env("EMULATED_CUDA_BUILDS", place.path().join("builds"));
    let result = done(&mut train).exits(0);
    let builds = std::fs::read_to_string(place.path().join("builds")).unwrap_or_default();
    let compiled = builds.lines().filter(|line| *line == "compile").count();
    assert!(compiled <= RUN_COMPILES, "{compiled} compilations: the budget is {RUN_COMPILES}");
    let run = result.run_dir();
    assert!(run.parent().unwrap().join(".compiled-kernels").is_dir());
    let events = events(&run);
    let phases: Vec<&Value> = events.iter().filter(|event| event["kind"] == "phase").collect();
    assert!(phases.iter().any(|phase| phase["phase"] == "self-test"), "{phases:#?}");
    assert!(phases.iter().any(|phase| phase["phase"] == "tiles"), "{phases:#?}");
    // A library that is absent is told and does no harm.
    let is_absent = |phase: &&&Value| {
        phase["phase"] == "products"
            && phase["detail"].as_str().unwrap().starts_with("cuBLASLt was not found, so sparktune's kernels")
    };
    assert_eq!(phases.iter().filter(is_absent).count() == 1, !run.join("products").exists(), "{phases:#?}");
    let tiles = std::fs::read_to_string(run.parent().unwrap().join(".tiles")).unwrap();
    assert!(tiles.lines().any(|line| line.starts_with("lora_linear_forward ")), "{tiles}");
    let losses: Vec<f64> = events
        .iter()
        .filter(|event| event["kind"] == "step")
        .map(|step| step["loss_nats"].as_f64().unwrap())
        .collect();
    assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
    let started = events.iter().find(|event| event["kind"] == "run_started").unwrap();
    assert!(started["device"].as_str().unwrap().ends_with(", bf16"), "{started}");
    for output in ["merged/model.safetensors", "adapter/adapter_config.json", "SERVE.md"] {
        assert!(run.join("outputs").join(output).is_file(), "{output}");
    }
}

/// On the emulated device and its stand-in for the library alone, which tells whether it was opened.
#[test]
fn products_are_left_to_the_vendors_library_where_it_is_faster_and_never_with_products_own() {
    let emulated =
        std::env::var_os("CUDA_PATH").map(PathBuf::from).filter(|path| path.join("cublaslt").is_dir());
    let Some(emulated) = emulated else {
        eprintln!("skipped: there is no emulated device");
        return;
    };
    let place = Place::new();
    place.chats(24);
    let trace = place.path().join("opened");
    let libraries = format!("{}:{}", emulated.join("cublaslt").display(), emulated.display());
    let trained = |products: &str| {
        let mut train = place.command(["train", "--non-interactive", "--json", "--device", "cuda"]);
        let few = ["--pack-length", "64", "--max-steps", "2", "--mtp", "none", "--rank", "8"];
        train.args(["--data", "train.jsonl", "--products", products]).args(few);
        train.arg("--model").arg(checkpoint()).env("SPARKTUNE_SAMPLE_COUNT", "0");
        train.env("LD_LIBRARY_PATH", &libraries).env("EMULATED_CUBLASLT_TRACE", &trace);
        done(&mut train).exits(0).run_dir()
    };
    let own = trained("own");
    assert!(!trace.exists() && !own.join("products").exists());
    let run = trained("auto");
    let traced = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(traced.lines().filter(|line| *line == "open").count(), 1);
    let record = std::fs::read_to_string(run.join("products")).unwrap();
    assert!(
        record.starts_with("130002 sparktune emulated device\n") && record.contains(" by 130002:"),
        "{record}"
    );
    let events = events(&run);
    let told = |event: &Value| {
        event["phase"] == "products"
            && event["detail"].as_str().unwrap().starts_with("cuBLASLt 13.0.2 computes ")
    };
    let is_first = |place: usize| events[..place].iter().all(|event| event["kind"] != "step");
    assert!(events.iter().position(told).is_some_and(is_first), "{events:#?}");

    // Where nobody says it, the GPU decides.
    for (capability, expected) in [("9.0", "auto"), ("12.1", "own")] {
        let mut plan = place.command(["plan", "--json", "--device", "cuda", "--data", "train.jsonl"]);
        plan.arg("--model").arg(checkpoint()).env("EMULATED_CUDA_CAPABILITY", capability);
        let plan = done(&mut plan).exits(0).last();
        assert_eq!(plan["products"].as_str().unwrap_or("own"), expected, "{plan:#}");
    }
}

/// The device's bf16 may choose other tokens than f32; the first ones of this model are far apart.
#[test]
fn a_model_answers_on_a_device_as_on_the_cpu() {
    let place = Place::new();
    let model = checkpoint();
    let answer = |device: &str| {
        let mut generate = place.command(["generate", model.to_str().unwrap(), "--prompt", "Say something"]);
        done(generate.args(["--temperature", "0", "--max-tokens", "4", "--json", "--device", device]))
    };
    let refused = answer("tpu").exits(2);
    assert!(refused.err.contains("[possible values: cpu, cuda]"), "{}", refused.err);
    let on_device = answer("cuda");
    if std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none() && on_device.code != Some(0) {
        assert!(on_device.err.contains("--device cpu answers on the CPU"), "{}", on_device.err);
        return;
    }
    // The other lines are the text and its tokens.
    let said =
        |done: Done| done.exits(0).out.lines().filter(|line| !line.contains("usage")).collect::<String>();
    assert_eq!(said(on_device), said(answer("cpu")));
}

/// On the emulated device alone: its parts are moved to where the Python packages of a CUDA image are.
#[test]
fn a_toolkit_among_python_packages_needs_no_variable() {
    let emulated =
        std::env::var_os("CUDA_PATH").map(PathBuf::from).filter(|path| path.join("emulator").is_dir());
    let Some(emulated) = emulated else {
        eprintln!("skipped: there is no emulated device");
        return;
    };
    let place = Place::new();
    let folder = |path: &str| {
        let folder = place.path().join(path);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let (driver, bin) = (folder("driver"), folder("conda/bin"));
    let cuda = folder("conda/lib/python3.12/site-packages/nvidia/cu13");
    let toolkit = folder("conda/lib/python3.12/site-packages/nvidia/cu13/lib");
    std::fs::write(bin.join("python3"), "").unwrap();
    symlink(emulated.join("include"), cuda.join("include")).unwrap();
    for entry in std::fs::read_dir(&emulated).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let is_of_driver =
            ["libcuda.", "libnvidia-"].iter().any(|start| name.to_str().unwrap().starts_with(start));
        if is_of_driver {
            symlink(entry.path(), driver.join(&name)).unwrap();
        }
        // The emulated NVRTC finds its own parts next to it. As in the package, there is no `libnvrtc.so`.
        if name == "libnvrtc.so.13" {
            std::fs::copy(entry.path(), toolkit.join(&name)).unwrap();
        } else if name != "libnvrtc.so" {
            symlink(entry.path(), toolkit.join(&name)).unwrap();
        }
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut doctor = place.command(["doctor", "--json"]);
    doctor.env("PATH", path).env("LD_LIBRARY_PATH", &driver).env_remove("CUDA_PATH");
    let findings = done(&mut doctor).exits(0).last();
    let of =
        |what: &str| findings.as_array().unwrap().iter().find(|finding| finding["what"] == what).unwrap();
    let found = of("NVRTC")["found"].as_str().unwrap();
    assert!(of("NVRTC")["status"] == "ok" && found.contains("site-packages/nvidia/cu13/lib"), "{found}");
    assert_eq!(of("CUDA headers")["status"], "ok");
    assert_eq!(of("shared memory (GPU)")["passed"], true);
}

/// On the emulated device alone, which counts. On a GPU a compilation takes about a second, and its module
/// half of one more.
#[test]
fn kernels_are_compiled_once_in_a_process_and_by_no_cache_of_cubecl() {
    let place = Place::new();
    // Its file in the folder would turn the cache on, if it were there.
    std::fs::write(place.path().join("cubecl.toml"), "[compilation]\ncache = true\n").unwrap();
    let images = place.path().join("images");
    std::fs::create_dir(&images).unwrap();
    let builds = |name: &str, keeps: bool| {
        let path = place.path().join(name);
        let mut doctor = place.command(["doctor", "--json"]);
        doctor.env("EMULATED_CUDA_BUILDS", &path).env_remove("SPARKTUNE_KERNEL_IMAGES");
        if keeps {
            doctor.env("SPARKTUNE_KERNEL_IMAGES", &images);
        }
        let findings = done(&mut doctor).last();
        let tests = findings.as_array().unwrap().iter().filter(|finding| finding["passed"] == false);
        assert_eq!(tests.count(), 0, "{findings:#}");
        let lines = std::fs::read_to_string(path).unwrap_or_default();
        ["compile", "load"].map(|what| lines.lines().filter(|line| *line == what).count())
    };
    let [compiled, loaded] = builds("first", false);
    if compiled == 0 {
        assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "nothing was compiled");
        eprintln!("skipped: there is no emulated device");
        return;
    }
    assert_eq!(compiled, loaded, "each module is loaded once");
    assert!(compiled <= DOCTOR_COMPILES, "{compiled} compilations: the budget is {DOCTOR_COMPILES}");
    assert_eq!(
        builds("second", false),
        [compiled, loaded],
        "another process compiles the same, whatever cubecl.toml says"
    );
    assert_eq!(builds("keeping", true), [compiled, loaded]);
    assert_eq!(builds("kept", true), [0, loaded], "images are kept from one process to the next");
    // One is torn, another says that it is for another function.
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&images).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let bytes = std::fs::read(&files[0]).unwrap();
    std::fs::write(&files[0], &bytes[..bytes.len() - 1]).unwrap();
    std::fs::copy(&files[2], &files[1]).unwrap();
    assert_eq!(builds("damaged", true), [2, loaded], "only what is whole and asked for is used");
    assert_eq!(builds("mended", true), [0, loaded]);
}

/// On the emulated device alone, which counts: memory that is not pinned is copied on the host before the
/// device gets it.
#[test]
fn each_way_of_a_token_file_to_the_device_makes_as_many_copies_as_its_row_says() {
    let emulated =
        std::env::var_os("CUDA_PATH").map(PathBuf::from).filter(|path| path.join("emulator").is_dir());
    if emulated.is_none() {
        eprintln!("skipped: there is no emulated device");
        return;
    }
    let place = Place::new();
    let (copies, launches) = (place.join("copies"), place.join("launches"));
    let mut bench = place.command(["bench", "loading", "--quick", "--json"]);
    bench.env("EMULATED_CUDA_COPIES", &copies).env("EMULATED_CUDA_TRACE", &launches);
    let rows = done(&mut bench).exits(0).last();
    let rows = rows.as_array().unwrap();
    let of = |way: &str| {
        let at = rows.iter().position(|row| row["what"] == format!("to the device: {way}")).unwrap();
        assert!(rows[at]["value"].as_f64().unwrap() > 0.0, "{}", rows[at]);
        rows[at + 1]["value"].as_f64().unwrap()
    };
    let counted = [
        "pageable",
        "through pinned memory",
        "pages of the file pinned in place",
        "read in place by a kernel",
    ]
    .map(of);
    assert_eq!(counted, [1.0, 1.0, 0.0, 0.0]);

    // The device's own account of copies larger than those of burn itself.
    let text = std::fs::read_to_string(&copies).unwrap();
    let of_kind = |kind: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
        lines
            .map(|bytes| bytes.trim().parse::<u64>().unwrap())
            .filter(|bytes| *bytes > 1 << 19)
            .collect::<Vec<_>>()
    };
    let (pageable, pinned) = (of_kind("pageable"), of_kind("pinned"));
    let whole = pageable[0];
    // Three rounds, and the first, which is not counted. Pinned memory is fetched in parts, a pinned file at
    // once.
    assert_eq!(pageable, [whole; 4]);
    assert_eq!(pinned.iter().filter(|bytes| **bytes == whole).count(), 4, "{text}");
    let in_parts: u64 = pinned.iter().filter(|bytes| **bytes < whole).sum();
    assert!(in_parts > 4 * whole - 4 * (1 << 19) && in_parts <= 4 * whole, "{in_parts} of {whole}: {text}");
    let launches = std::fs::read_to_string(&launches).unwrap();
    assert_eq!(launches.lines().filter(|line| line.starts_with("read_in_place ")).count(), 4, "{launches}");
}
