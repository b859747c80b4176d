//! Runs the real `run.sh` on simulated machines: a checkout in a folder with a space in its name, a PATH with
//! only the tools of a bare Debian, and stand-ins for cargo, rustup, curl, the installer, Docker and Podman
//! that record their arguments.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test, in its helpers too")]

mod image_sources;
mod members;

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use portable_pty::{Child, CommandBuilder, PtySize, native_pty_system};
use rustix::process::{Pid, Signal, getgid, getuid, kill_process};

const BARE_TOOLS: [&str; 21] = [
    "awk", "bash", "cat", "chmod", "cp", "df", "dirname", "find", "head", "id", "ln", "mkdir", "mktemp",
    "mv", "readlink", "rm", "sed", "sh", "sleep", "sort", "touch",
];

/// Answers `--version`, records every other call, and builds a `sparktune` that prints its folder and
/// arguments, records the name it was called by, and exits with 5.
const CARGO: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "cargo VERSION (0000 2026-01-01)"; exit; }
echo "cargo $* in $(pwd)" >>"$HOME/asked"
[ "$1" = build ] || exit 0
[ -z "$BREAK_BUILD" ] || exit 101
printf '#!/bin/sh\nprintf "%%s|" "$PWD" "$@"\necho "$SPARKTUNE_COMMAND" >"$HOME/called"\nexit 5\n' >"$CARGO_TARGET_DIR/release/sparktune"
chmod +x "$CARGO_TARGET_DIR/release/sparktune"
"#;
const RUSTC: &str = "#!/bin/sh\necho 'rustc VERSION (0000 2026-01-01)'\n";
const NOTHING: &str = "#!/bin/sh\n";

/// Docker or Podman: records its arguments with `|` between them, keeps the label of the image it builds, and
/// instead of running sparktune prints its arguments and exits with 5. With `WAIT`, only after a signal.
const ENGINE: &str = r#"#!/bin/sh
{ printf '%s' "${0##*/}"; printf '|%s' "$@"; echo; } >>"$HOME/asked"
case "$1" in
--version) echo "${0##*/} version 28.3.0" ;;
info) [ -z "$NO_DAEMON" ] || { echo "Cannot connect to the daemon" >&2; exit 1; }; echo "$INFO" ;;
image) [ "$2" = prune ] || cat "$HOME/image" 2>/dev/null || exit 1 ;;
build)
    [ -z "$BREAK_BUILD" ] || exit 1
    for argument in "$@"; do case $argument in BUILT=*) echo "${argument#*=}" >"$HOME/image" ;; esac; done ;;
run) [ -z "$BREAK_RUN" ] || exit 125; echo "$HF_TOKEN" >"$HOME/token"; echo "$SPARKTUNE_COMMAND" >"$HOME/called"; echo c0ffee ;;
exec)
    case "$*" in *"kill -s"*) touch "$HOME/told"; exit ;; esac
    while [ "$1" != sparktune ]; do shift; done
    printf '%s|' "$@"
    while [ -n "$WAIT" ] && [ ! -e "$HOME/told" ]; do sleep 0.05; done
    exit 5 ;;
esac
"#;

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// A machine with a C compiler and curl, and a checkout of sparktune.
    fn bare() -> Self {
        let machine = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        for folder in ["bin", "home", "elsewhere", "my house/src"] {
            fs::create_dir_all(machine.path(folder)).expect("a new folder");
        }
        let search = std::env::var_os("PATH").expect("PATH is set");
        for tool in BARE_TOOLS {
            let real =
                std::env::split_paths(&search).map(|folder| folder.join(tool)).find(|path| path.exists());
            symlink(real.expect("a tool that every Debian has"), machine.path("bin").join(tool))
                .expect("a link");
        }
        machine.program("cc", NOTHING);
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in [".cargo", "docker", "kernels", "presets", "tests/peers"] {
            fs::create_dir_all(machine.path("my house").join(folder)).expect("a new folder");
        }
        for file in ["run.sh", "Cargo.toml", "Cargo.lock", "docker/Dockerfile", "docker/engine.sh"] {
            // By another process, for the reason that `write_program` has.
            let to = machine.path("my house").join(file);
            let copied = Command::new("cp").arg(repository.join(file)).arg(to).status();
            assert!(copied.expect("cp starts").success(), "{file}");
        }
        machine
    }

    /// A bare machine with this engine and, if wanted, an NVIDIA driver.
    fn with_engine(engine: &str, has_driver: bool) -> Self {
        let machine = Self::bare();
        machine.program(engine, ENGINE);
        if has_driver {
            machine.program("nvidia-smi", NOTHING);
        }
        machine
    }

    /// A bare machine with Rust in this version.
    fn with_rust(version: &str) -> Self {
        let machine = Self::bare();
        machine.program("cargo", &CARGO.replace("VERSION", version));
        machine.program("rustc", &RUSTC.replace("VERSION", version));
        machine
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn program(&self, name: &str, text: &str) {
        write_program(&self.path("bin").join(name), text);
    }

    /// Writes a source whose file time is newer than that of the last build. File times go in steps of some
    /// milliseconds.
    fn edit(&self, text: &str) {
        let time = |file: &str| fs::metadata(self.path(file)).unwrap().modified().unwrap();
        let built = time("my house/target/release/.built-by-run-sh");
        loop {
            fs::write(self.path("my house/src/main.rs"), text).unwrap();
            if time("my house/src/main.rs") > built {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Puts an installer where the stand-in for curl finds it: it leaves a current Rust in `$CARGO_HOME/bin`.
    fn offers_rust(&self) {
        for (name, text) in [("cargo", CARGO), ("rustc", RUSTC)] {
            write_program(&self.path("elsewhere").join(name), &text.replace("VERSION", "1.99.0"));
        }
        let offered = self.path("elsewhere");
        let installer = format!(
            "echo \"installer $*\" >>\"$HOME/asked\"\nmkdir -p \"$CARGO_HOME/bin\"\ncp '{0}/cargo' '{0}/rustc' \"$CARGO_HOME/bin/\"\n",
            offered.display()
        );
        fs::write(offered.join("rustup-init.sh"), installer).expect("an installer");
        let curl = format!(
            "#!/bin/sh\nwhile [ \"$1\" != --output ]; do shift; done\ncp '{}/rustup-init.sh' \"$2\"\n",
            offered.display()
        );
        self.program("curl", &curl);
    }

    fn command(&self, door: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command.arg(door).args(arguments).current_dir(self.path("elsewhere")).env_clear();
        command.env("PATH", self.path("bin")).env("HOME", self.path("home"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(&self.path("my house/run.sh"), arguments).output().expect("bash starts")
    }

    /// `run.sh --docker` with these variables too.
    fn docker(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let arguments = [&["--docker"], arguments].concat();
        let mut command = self.command(&self.path("my house/run.sh"), &arguments);
        command.envs(variables.iter().copied()).output().expect("bash starts")
    }

    /// Starts `run.sh` in a terminal, and returns the process and what it prints.
    ///
    /// Signals have their default action in it, even if whoever runs the tests ignores them (`nohup`, a job
    /// in the background): `Command` would pass that on, and bash cannot trap a signal that is ignored
    /// when bash starts.
    fn in_terminal(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Box<dyn Child>, Box<dyn Read>) {
        let pty = native_pty_system().openpty(PtySize::default()).unwrap();
        let mut command = CommandBuilder::new("bash");
        command.arg(self.path("my house/run.sh"));
        command.args(arguments);
        command.cwd(self.path("elsewhere"));
        command.env_clear();
        command.env("PATH", self.path("bin"));
        command.env("HOME", self.path("home"));
        command.env("TERM", "xterm");
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = pty.slave.spawn_command(command).unwrap();
        (child, pty.master.try_clone_reader().unwrap())
    }

    /// The name by which `run.sh` says it was called.
    fn called(&self) -> String {
        fs::read_to_string(self.path("home/called")).expect("sparktune was started").trim_end().to_owned()
    }

    /// The folder in which commands are run, as the shell prints it.
    fn elsewhere(&self) -> String {
        self.path("elsewhere").canonicalize().expect("it is there").display().to_string()
    }

    /// Takes the calls that the stand-ins have recorded.
    fn asked(&self) -> String {
        let note = self.path("home/asked");
        let text = fs::read_to_string(&note).unwrap_or_default();
        let _ = fs::remove_file(note);
        text
    }
}

/// Another process writes it: a file that is open for writing cannot be started, and whatever this process
/// opens is open for a moment in every process that another test starts meanwhile.
fn write_program(path: &Path, text: &str) {
    let write = r#"rm -f "$0" && printf %s "$1" >"$0" && chmod 755 "$0""#;
    let status = Command::new("sh").args(["-c", write]).arg(path).arg(text).status().expect("sh starts");
    assert!(status.success(), "{}", path.display());
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn arguments_folder_output_and_exit_code_are_those_of_the_program() {
    let machine = Machine::with_rust("1.95.0");
    let output = machine.run(&["--data", "my file.jsonl", ""]);
    let elsewhere = machine.path("elsewhere").canonicalize().unwrap();
    assert_eq!(
        stdout(&output),
        format!("{}|--data|my file.jsonl||", elsewhere.display()),
        "{}",
        stderr(&output)
    );
    assert_eq!(output.status.code(), Some(5));
    let asked = machine.asked();
    assert!(asked.contains("cargo build --release") && asked.trim_end().ends_with("/my house"), "{asked}");
}

#[test]
fn a_link_to_the_door_opens_the_same_house() {
    let machine = Machine::with_rust("1.95.0");
    symlink("../my house/run.sh", machine.path("elsewhere/tune")).unwrap();
    let output = machine.command(Path::new("tune"), &["runs"]).output().unwrap();
    assert!(stdout(&output).ends_with("|runs|"), "{}", stderr(&output));
}

#[test]
fn an_installed_link_works_in_every_folder_and_names_the_program() {
    let machine = Machine::with_rust("1.95.0");
    let output = machine.run(&["install"]);
    assert_eq!((output.status.code(), machine.asked().as_str()), (Some(0), ""), "{}", stderr(&output));
    let link = machine.path("home/.local/bin/sparktune");
    assert_eq!(link.canonicalize().unwrap(), machine.path("my house/run.sh").canonicalize().unwrap());
    assert!(stderr(&output).contains("is not on your PATH"), "{}", stderr(&output));

    let path = format!("{}:{}", machine.path("bin").display(), link.parent().unwrap().display());
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(machine.path("elsewhere")).env_clear();
        command.env("PATH", &path).env("HOME", machine.path("home")).output().unwrap()
    };
    let output = shell("sparktune runs");
    assert_eq!(stdout(&output), format!("{}|runs|", machine.elsewhere()), "{}", stderr(&output));
    assert_eq!(machine.called(), "sparktune");
    let output = shell("sparktune install");
    assert_eq!(output.status.code(), Some(0), "a second time changes nothing: {}", stderr(&output));
    assert!(stderr(&output).contains("type 'sparktune' in any folder"), "{}", stderr(&output));
}

#[test]
fn install_says_which_program_comes_first_on_the_path() {
    let machine = Machine::with_rust("1.95.0");
    machine.program("sparktune", NOTHING);
    let output = machine.run(&["install"]);
    assert_eq!(output.status.code(), Some(0));
    let other = format!("still starts {}", machine.path("bin/sparktune").display());
    assert!(stderr(&output).contains(&other), "{}", stderr(&output));
}

#[test]
fn install_replaces_no_file_of_another_program() {
    let machine = Machine::with_rust("1.95.0");
    let file = machine.path("elsewhere/tools/sparktune");
    let refused = || {
        let output = machine.run(&["install", "tools"]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("has not been changed"), "{}", stderr(&output));
    };
    fs::create_dir(machine.path("elsewhere/tools")).unwrap();
    fs::write(&file, "another program").unwrap();
    refused();
    assert_eq!(fs::read_to_string(&file).unwrap(), "another program");
    fs::remove_file(&file).unwrap();
    symlink("/moved/away", &file).unwrap();
    refused();
    assert_eq!(fs::read_link(&file).unwrap(), Path::new("/moved/away"));
    fs::remove_file(&file).unwrap();
    assert_eq!(machine.run(&["install", "tools"]).status.code(), Some(0));
    assert_eq!(fs::read_link(&file).unwrap(), machine.path("my house/run.sh").canonicalize().unwrap());
    assert_eq!(machine.run(&["install", "tools", "more"]).status.code(), Some(1));
}

#[test]
fn the_program_learns_how_it_was_called() {
    let machine = Machine::with_rust("1.95.0");
    machine.program("docker", ENGINE);
    let shell = |folder: &str, script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(machine.path(folder)).env_clear();
        let output = command.env("PATH", machine.path("bin")).env("HOME", machine.path("home")).output();
        assert_eq!(output.unwrap().status.code(), Some(5), "{script}");
        machine.called()
    };
    assert_eq!(shell("my house", "./run.sh runs"), "./run.sh");
    assert_eq!(shell("my house", "bash run.sh --rebuild runs"), "./run.sh");
    assert_eq!(shell("elsewhere", "'../my house/run.sh' runs"), r"../my\ house/run.sh");
    assert_eq!(shell("my house", "./run.sh --docker runs"), "./run.sh --docker");
    let asked = machine.asked();
    let run = line(&asked, "docker|run|");
    assert!(has(run, "--env|SPARKTUNE_COMMAND") && !run.contains("--docker"), "{run}");
}

#[test]
fn it_builds_once_and_again_only_after_a_change() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    assert!(machine.asked().contains("cargo build"));
    machine.run(&[]);
    assert_eq!(machine.asked(), "");
    machine.edit("fn main() {}");
    machine.run(&[]);
    assert!(machine.asked().contains("cargo build"));
    // A file time in the future is newer than the build whatever the steps of the clock are.
    let data = fs::File::create(machine.path("my house/rejected.jsonl")).unwrap();
    data.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
    machine.run(&[]);
    assert_eq!(machine.asked(), "", "data is no source");
}

#[test]
fn a_failed_build_runs_nothing_and_is_tried_again() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    machine.asked();
    machine.edit("fn main() {");
    let door = machine.path("my house/run.sh");
    for _ in 0..2 {
        let output = machine.command(&door, &["train"]).env("BREAK_BUILD", "1").output().unwrap();
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(1)));
        assert!(stderr(&output).contains("the build failed"), "{}", stderr(&output));
        assert!(machine.asked().contains("cargo build"));
    }
}

#[test]
fn without_rust_it_says_so_and_installs_it() {
    let machine = Machine::bare();
    machine.offers_rust();
    let output = machine.run(&["--demo"]);
    assert!(stdout(&output).ends_with("|--demo|"), "{}", stderr(&output));
    assert!(stderr(&output).contains("Installing it with rustup"), "{}", stderr(&output));
    let asked = machine.asked();
    assert!(asked.contains("installer -y") && asked.contains("--no-modify-path"), "{asked}");
    assert!(machine.path("home/.cargo/bin/cargo").exists());
    machine.edit("fn main() {}");
    machine.run(&["--demo"]);
    assert!(!machine.asked().contains("installer"), "the second time it finds what it installed");
}

#[test]
fn a_rust_that_is_too_old_is_not_used() {
    let machine = Machine::with_rust("1.63.0");
    machine.offers_rust();
    let output = machine.run(&[]);
    assert!(machine.asked().contains("installer -y"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn with_rustup_a_newer_toolchain_is_put_beside_the_old_one() {
    let machine = Machine::with_rust("1.63.0");
    let newer = CARGO.replace("VERSION", "1.95.0");
    fs::write(machine.path("elsewhere/cargo"), newer).unwrap();
    fs::write(machine.path("elsewhere/rustc"), RUSTC.replace("VERSION", "1.95.0")).unwrap();
    let rustup = format!(
        "#!/bin/sh\necho \"rustup $*\" >>\"$HOME/asked\"\ncp '{0}/cargo' '{0}/rustc' '{1}/'\n",
        machine.path("elsewhere").display(),
        machine.path("bin").display()
    );
    machine.program("rustup", &rustup);
    let output = machine.run(&[]);
    let asked = machine.asked();
    assert!(asked.contains("rustup toolchain install 1.95 --profile minimal"), "{asked}{}", stderr(&output));
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let machine = Machine::bare();
    let output = machine.run(&[]);
    assert!(stderr(&output).contains("apt-get install curl"), "{}", stderr(&output));

    machine.program("curl", "#!/bin/sh\necho 'curl: (6) Could not resolve host' >&2\nexit 6\n");
    let output = machine.run(&[]);
    assert!(stderr(&output).contains("could not be installed"), "{}", stderr(&output));
    assert!(stderr(&output).contains("HTTPS_PROXY"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));

    fs::remove_file(machine.path("bin/cc")).unwrap();
    let output = machine.run(&[]);
    assert!(stderr(&output).contains("apt-get install build-essential"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
}

#[test]
fn cuda_is_built_in_where_there_is_a_driver_and_only_there() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    let driver =
        ["/dev/nvidiactl", "/proc/driver/nvidia/version"].iter().any(|path| Path::new(path).exists());
    assert_eq!(machine.asked().contains("--features cuda"), driver);
    machine.program("nvidia-smi", NOTHING);
    machine.run(&[]);
    assert_eq!(machine.asked().contains("--features cuda"), !driver, "a new driver means a new build");
}

#[test]
fn a_variable_decides_about_cuda_where_the_driver_would_not() {
    let machine = Machine::with_rust("1.95.0");
    let built = |cuda: &str| {
        let mut command = machine.command(&machine.path("my house/run.sh"), &[]);
        let output = command.env("SPARKTUNE_CUDA", cuda).output().unwrap();
        (output.status.code(), machine.asked().contains("--features cuda"), stderr(&output))
    };
    assert!(matches!(built("yes"), (Some(5), true, _)));
    machine.program("nvidia-smi", NOTHING);
    assert!(matches!(built("no"), (Some(5), false, _)));
    let (code, _, message) = built("maybe");
    assert!(code == Some(1) && message.contains("must be yes or no"), "{message}");
}

#[test]
fn test_runs_every_test_of_the_workspace() {
    let machine = Machine::with_rust("1.95.0");
    let output = machine.run(&["test", "--locked", "packing"]);
    let asked = machine.asked();
    assert!(asked.starts_with("cargo test --release --workspace"), "{asked}{}", stderr(&output));
    assert!(asked.contains("--locked packing in ") && asked.trim_end().ends_with("/my house"), "{asked}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_rebuild_builds_what_is_built_and_a_clean_one_throws_it_away_first() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    machine.asked();
    let output = machine.run(&["--rebuild", "runs", "--rebuild"]);
    assert!(
        stdout(&output).ends_with("|runs|--rebuild|"),
        "only leading flags are run.sh's: {}",
        stdout(&output)
    );
    let asked = machine.asked();
    assert!(asked.starts_with("cargo build --release"), "{asked}");

    let output = machine.run(&["--rebuild=clean"]);
    let asked = machine.asked();
    let (clean, build) = asked.split_once('\n').unwrap_or_else(|| panic!("{asked}{}", stderr(&output)));
    assert!(clean.starts_with("cargo clean --release in "), "{asked}");
    assert!(build.starts_with("cargo build --release"), "{asked}");
    let mut shared = machine.command(&machine.path("my house/run.sh"), &["--rebuild=clean"]);
    shared.env("CARGO_TARGET_DIR", machine.path("elsewhere/target")).output().unwrap();
    let asked = machine.asked();
    assert!(
        asked.starts_with("cargo clean --release --workspace in "),
        "others may use that folder: {asked}"
    );

    let output = machine.run(&["--rebuild=all"]);
    assert_eq!((output.status.code(), machine.asked().as_str()), (Some(1), ""));
    assert!(stderr(&output).contains("--rebuild=clean"), "{}", stderr(&output));
}

/// The recorded call that begins so.
fn line<'a>(asked: &'a str, beginning: &str) -> &'a str {
    let found = asked.lines().find(|line| line.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no {beginning} in\n{asked}"))
}

/// Whether a recorded call contains these arguments, one after the other.
fn has(line: &str, arguments: &str) -> bool {
    format!("{line}|").contains(&format!("|{arguments}|"))
}

fn mount(folder: impl std::fmt::Display) -> String {
    format!("--mount|type=bind,source={folder},target={folder}")
}

#[test]
fn in_a_container_arguments_output_and_exit_code_are_those_of_the_program() {
    for engine in ["docker", "podman"] {
        let machine = Machine::with_engine(engine, false);
        let output = machine.docker(&["train", "--data", "my file.jsonl", "", "--docker"], &[]);
        assert_eq!(stdout(&output), "sparktune|train|--data|my file.jsonl||--docker|", "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(5));
        let asked = machine.asked();
        let run = line(&asked, &format!("{engine}|run|"));
        for flags in
            ["--detach|--rm", "--network|host", "--entrypoint|stay.sh|sparktune", &mount(machine.elsewhere())]
        {
            assert!(has(run, flags), "{flags} in {run}");
        }
        assert!(has(run, &format!("--workdir|{}", machine.elsewhere())), "{run}");
        assert!(has(run, &mount(machine.path("my house").canonicalize().unwrap().display())), "{run}");
        assert!(
            line(&asked, &format!("{engine}|exec|")).starts_with(&format!("{engine}|exec|c0ffee|sh|-c|")),
            "{asked}"
        );
        assert!(!asked.contains("cargo"), "nothing is built out here: {asked}");
    }
}

#[test]
fn the_image_is_built_when_it_is_missing_old_of_another_checkout_or_when_asked() {
    let machine = Machine::with_engine("docker", false);
    let house = machine.path("my house").canonicalize().unwrap();
    let house = house.display();
    let builds = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = machine.docker(arguments, variables);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        machine.asked().lines().find(|line| line.starts_with("docker|build|")).map(str::to_owned)
    };
    let first = builds(&[], &[]).expect("there is no image yet");
    assert!(has(&first, &format!("--file|{house}/docker/Dockerfile|--tag|sparktune")), "{first}");
    assert!(first.ends_with(&format!("|{house}")) && !first.contains("--no-cache"), "{first}");
    assert_eq!(builds(&[], &[]), None);
    fs::write(machine.path("my house/train.jsonl"), "{}").unwrap();
    assert_eq!(builds(&[], &[]), None, "data is no part of the image");
    fs::write(machine.path("my house/src/main.rs"), "fn main() {}").unwrap();
    assert!(builds(&[], &[]).is_some(), "a source is newer");
    assert_eq!(builds(&[], &[]), None);
    fs::write(machine.path("home/image"), "9999999999.0 /another/checkout").unwrap();
    assert!(builds(&[], &[]).is_some(), "that image was built from another checkout");

    assert!(builds(&["--rebuild"], &[]).is_some_and(|build| !build.contains("--no-cache")));
    let clean = builds(&["--rebuild=clean"], &[("CUDA_IMAGE", "a.mirror/cuda:13")]).unwrap();
    assert!(clean.contains("|--no-cache|--build-arg|FRESH="), "{clean}");
    assert!(has(&clean, "--build-arg|CUDA_IMAGE=a.mirror/cuda:13"), "{clean}");
}

#[test]
fn an_image_that_cannot_be_built_or_started_runs_nothing() {
    let machine = Machine::with_engine("docker", false);
    let output = machine.docker(&["train"], &[("BREAK_BUILD", "1")]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(1)));
    assert!(stderr(&output).contains("CUDA_IMAGE"), "{}", stderr(&output));
    assert!(!machine.asked().contains("docker|run"));
    let output = machine.docker(&["train"], &[("BREAK_RUN", "1")]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(1)));
    assert!(!machine.asked().contains("docker|exec"));
}

#[test]
fn a_token_is_handed_over_by_its_name_alone() {
    let machine = Machine::with_engine("docker", false);
    machine.docker(&[], &[("HF_TOKEN", "hf_secret"), ("SPARKTUNE_RANK", "8"), ("UNRELATED", "x")]);
    let asked = machine.asked();
    let run = line(&asked, "docker|run|");
    for name in ["HF_TOKEN", "SPARKTUNE_RANK", "SPARKTUNE_HOME", "HOME"] {
        assert!(has(run, &format!("--env|{name}")), "{name} in {run}");
    }
    assert!(!asked.contains("hf_secret"), "{asked}");
    assert!(
        !run.contains("UNRELATED") && !run.contains("HF_HOME"),
        "what is not set or not read stays out: {run}"
    );
    assert_eq!(
        fs::read_to_string(machine.path("home/token")).unwrap().trim(),
        "hf_secret",
        "the engine has it"
    );
}

#[test]
fn caches_and_every_path_that_is_named_are_mounted_where_they_are() {
    let machine = Machine::with_engine("podman", true);
    machine.program("nvidia-ctk", "#!/bin/sh\necho nvidia.com/gpu=all\n");
    let root = machine.folder.path().canonicalize().unwrap();
    for folder in ["my data/old", "models/tiny", "big disk"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("big disk/train.jsonl"), "").unwrap();
    symlink("../big disk/train.jsonl", root.join("my data/link.jsonl")).unwrap();
    let cache = root.join("hub cache").display().to_string();
    let model = format!("--model={}", root.join("models/tiny").display());
    let runs = root.join("my data/old/runs/new").display().to_string();
    let arguments = [
        "--data",
        "../my data/link.jsonl",
        &model,
        "--runs-dir",
        &runs,
        "--name",
        "Qwen/Qwen3.5-2B",
        "/no/such",
    ];
    let output = machine.docker(&arguments, &[("HF_HOME", &cache)]);
    assert!(stdout(&output).ends_with("|--name|Qwen/Qwen3.5-2B|/no/such|"), "{}", stderr(&output));
    let asked = machine.asked();
    let run = line(&asked, "podman|run|");
    for folder in
        ["elsewhere", "my house", "hub cache", "my data", "big disk", "models/tiny", "home/.cache/cubecl"]
    {
        assert!(has(run, &mount(root.join(folder).display())), "{folder} in {run}");
        assert!(root.join(folder).is_dir(), "an engine would make {folder} as root, or refuse");
    }
    assert!(!run.contains("my data/old"), "it lies in a folder that is mounted: {run}");
    assert!(!run.contains("source=/,") && !run.contains("huggingface"), "{run}");

    let asked = |folder: &str| {
        let mut command = machine.command(&machine.path("my house/run.sh"), &["--docker"]);
        stderr(&command.current_dir(folder).output().unwrap())
    };
    assert!(asked("/").contains("Change to one of your own folders"));
    fs::create_dir(root.join("a,b")).unwrap();
    assert!(asked(root.join("a,b").to_str().unwrap()).contains("comma"));
}

#[test]
fn the_gpu_is_handed_over_as_each_engine_wants_it_and_where_it_cannot_be_that_is_said() {
    let run = |machine: &Machine, info: &str| {
        let output = machine.docker(&[], &[("INFO", info)]);
        let asked = machine.asked();
        let run = asked.lines().find(|line| line.contains("|run|")).unwrap_or_default().to_owned();
        (run, stderr(&output))
    };
    let docker = Machine::with_engine("docker", true);
    let (flags, _) = run(&docker, r#"{"nvidia":{},"runc":{}} []"#);
    assert!(has(&flags, "--gpus|all"), "{flags}");
    let (flags, message) = run(&docker, r#"{"runc":{}} []"#);
    assert!(!flags.contains("--gpus"), "{flags}");
    assert!(
        message.contains("train on the CPU") && message.contains("nvidia-container-toolkit"),
        "{message}"
    );
    docker.program("nvidia-container-runtime-hook", NOTHING);
    assert!(has(&run(&docker, r#"{"runc":{}} []"#).0, "--gpus|all"));

    let podman = Machine::with_engine("podman", true);
    let (flags, message) = run(&podman, "");
    assert!(!flags.contains("nvidia.com") && message.contains("nvidia-ctk cdi generate"), "{flags}{message}");
    podman.program("nvidia-ctk", "#!/bin/sh\necho nvidia.com/gpu=0\necho nvidia.com/gpu=all\n");
    assert!(has(&run(&podman, "").0, "--device|nvidia.com/gpu=all"));

    if !["/dev/nvidiactl", "/proc/driver/nvidia/version"].iter().any(|path| Path::new(path).exists()) {
        let (flags, message) = run(&Machine::with_engine("docker", false), r#"{"nvidia":{}} []"#);
        assert!(!flags.contains("--gpus") && message.contains("no NVIDIA driver"), "{flags}{message}");
    }
}

#[test]
fn what_is_written_in_a_container_belongs_to_its_caller() {
    let me = format!("--user|{}:{}", getuid().as_raw(), getgid().as_raw());
    for (engine, info, flags) in [
        ("docker", r#"{"runc":{}} ["name=seccomp"]"#, me.clone()),
        ("docker", r#"{"runc":{}} ["name=seccomp","name=rootless"]"#, "--user|0:0".into()),
        ("podman", "rootless=false", me.clone()),
        ("podman", "rootless=true", format!("{me}|--userns|keep-id")),
    ] {
        let machine = Machine::with_engine(engine, false);
        machine.docker(&[], &[("INFO", info)]);
        let asked = machine.asked();
        let run = line(&asked, &format!("{engine}|run|"));
        assert!(has(run, &flags), "{engine} {info}: {run}");
        assert_eq!(run.contains("keep-id"), flags.contains("keep-id"), "{run}");
    }
}

#[test]
fn without_an_engine_that_answers_it_says_what_to_install_or_start() {
    let machine = Machine::bare();
    let output = machine.docker(&[], &[]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(1)));
    assert!(stderr(&output).contains("apt-get install podman"), "{}", stderr(&output));

    machine.program("docker", ENGINE);
    let output = machine.docker(&[], &[("NO_DAEMON", "1")]);
    let message = stderr(&output);
    assert!(
        message.contains("Cannot connect to the daemon") && message.contains("systemctl start docker"),
        "{message}"
    );
    assert_eq!(output.status.code(), Some(1));

    machine.asked();
    machine.program("docker", &ENGINE.replace("info)", "info) exit 1 ;; other)"));
    machine.program("podman", ENGINE);
    assert_eq!(machine.docker(&[], &[]).status.code(), Some(5), "Podman serves where Docker's daemon is off");
    let podman_as_docker = Machine::with_engine("podman", false);
    podman_as_docker.program(
        "docker",
        "#!/bin/sh\n[ \"$1\" != --version ] || { echo podman version 5; exit; }\nexit 9\n",
    );
    assert_eq!(podman_as_docker.docker(&[], &[]).status.code(), Some(5));
}

#[test]
fn a_terminal_is_passed_on_where_there_is_one() {
    let machine = Machine::with_engine("docker", false);
    machine.docker(&[], &[]);
    assert!(machine.asked().contains("docker|exec|c0ffee|sh|-c"), "no terminal, no -it");

    let (mut child, mut output) = machine.in_terminal(&["--docker", "runs"], &[]);
    let _ = std::io::copy(&mut output, &mut std::io::sink());
    assert_eq!(child.wait().unwrap().exit_code(), 5);
    let asked = machine.asked();
    assert!(asked.contains("docker|exec|-it|c0ffee|sh|-c"), "{asked}");
    assert!(has(line(&asked, "docker|run|"), "--env|TERM"), "{asked}");
}

#[test]
fn a_signal_reaches_the_program_in_the_container() {
    let machine = Machine::with_engine("docker", false);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::INT, "INT")] {
        let (mut child, mut output) = machine.in_terminal(&["--docker", "train"], &[("WAIT", "1")]);
        let mut printed = Vec::new();
        while !String::from_utf8_lossy(&printed).contains("sparktune|train|") {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            printed.extend(byte);
        }
        let process = i32::try_from(child.process_id().unwrap()).unwrap();
        kill_process(Pid::from_raw(process).unwrap(), signal).unwrap();
        assert_eq!(child.wait().unwrap().exit_code(), 5, "the program's code, not the signal's");
        assert!(machine.asked().contains(&format!("kill -s {name} ")), "{name}");
        fs::remove_file(machine.path("home/told")).unwrap();
    }
}
