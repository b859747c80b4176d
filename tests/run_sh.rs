//! The real `run.sh` on machines it has never seen: a checkout in a folder with a space in its name, a PATH that holds
//! only what a bare Debian has, and stand-ins for cargo, rustup, curl and the installer that write down what they were
//! asked.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BARE_TOOLS: [&str; 18] = [
    "awk", "bash", "cat", "chmod", "cp", "df", "dirname", "find", "head", "mkdir", "mktemp", "mv",
    "readlink", "rm", "sed", "sh", "sort", "touch",
];

/// Answers `--version`, notes everything else, and builds a `sparktune` that prints its arguments and ends with 5.
const CARGO: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "cargo VERSION (0000 2026-01-01)"; exit; }
echo "cargo $* in $(pwd)" >>"$HOME/asked"
[ "$1" = build ] || exit 0
[ -z "$BREAK_BUILD" ] || exit 101
printf '#!/bin/sh\nprintf "%%s|" "$PWD" "$@"\nexit 5\n' >"$CARGO_TARGET_DIR/release/sparktune"
chmod +x "$CARGO_TARGET_DIR/release/sparktune"
"#;
const RUSTC: &str = "#!/bin/sh\necho 'rustc VERSION (0000 2026-01-01)'\n";
const NOTHING: &str = "#!/bin/sh\n";

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
        for file in ["run.sh", "Cargo.toml"] {
            fs::copy(repository.join(file), machine.path("my house").join(file)).expect("a copy");
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

    /// What the stand-ins were asked, and forgets it.
    fn asked(&self) -> String {
        let note = self.path("home/asked");
        let text = fs::read_to_string(&note).unwrap_or_default();
        let _ = fs::remove_file(note);
        text
    }
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("an executable");
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
fn it_builds_once_and_again_only_after_a_change() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    assert!(machine.asked().contains("cargo build"));
    machine.run(&[]);
    assert_eq!(machine.asked(), "");
    fs::write(machine.path("my house/src/main.rs"), "fn main() {}").unwrap();
    machine.run(&[]);
    assert!(machine.asked().contains("cargo build"));
}

#[test]
fn a_failed_build_runs_nothing_and_is_tried_again() {
    let machine = Machine::with_rust("1.95.0");
    machine.run(&[]);
    machine.asked();
    fs::write(machine.path("my house/src/main.rs"), "fn main() {").unwrap();
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
    fs::write(machine.path("my house/src/main.rs"), "fn main() {}").unwrap();
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
fn test_runs_every_test_of_the_workspace() {
    let machine = Machine::with_rust("1.95.0");
    let output = machine.run(&["test", "--locked", "packing"]);
    let asked = machine.asked();
    assert!(asked.starts_with("cargo test --release --workspace"), "{asked}{}", stderr(&output));
    assert!(asked.contains("--locked packing in ") && asked.trim_end().ends_with("/my house"), "{asked}");
    assert_eq!(output.status.code(), Some(0));
}
