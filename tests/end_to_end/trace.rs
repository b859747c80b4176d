//! The changes that processes make to the files below a folder, by their system calls.
//!
//! The calls come from `strace`, because the program makes them without libc, so that no library could be put
//! in between. Enters: a command. Leaves: its changes in their order, for [`crate::disk`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use crate::disk::{Change, History, Id};

const CALLS: &str = "trace=open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,\
    fallocate,fsync,fdatasync,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,\
    mkdir,mkdirat,copy_file_range,sendfile,lseek,mmap";

/// Runs a command under `strace` and returns its changes below `root`, or `None`, said aloud, where that is
/// not possible.
pub(crate) fn traced(command: &Command, root: &Path) -> Option<History> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-y", "-xx", "-s", "100000000", "-e", CALLS, "-e", "signal=none", "-o"])
        .arg(log.path());
    traced.arg(command.get_program()).args(command.get_args());
    traced.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !can_trace.is_ok_and(|status| status.success()) {
        println!("skipped: strace is not installed, or tracing is not permitted here");
        return None;
    }
    let output = traced.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut reader = Reader { root: root.canonicalize().unwrap(), ..Reader::default() };
    let mut unfinished: BTreeMap<String, String> = BTreeMap::new();
    for line in fs::read_to_string(log.path()).unwrap().lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix(" <unfinished ...>") {
            unfinished.insert(thread.to_owned(), begun.to_owned());
        } else if let Some((_, rest)) =
            call.strip_prefix("<... ").and_then(|call| call.split_once(" resumed>"))
        {
            let whole = unfinished.remove(thread).unwrap() + rest;
            reader.read(&whole);
        } else {
            reader.read(call);
        }
    }
    Some(reader.history)
}

/// An argument of a call, without what `strace` explains of it.
#[derive(Debug)]
enum Argument {
    Text(Vec<u8>),
    /// A descriptor or a number, and the path of a descriptor.
    Number(i64, Option<PathBuf>),
    Word(String),
}

#[derive(Default)]
struct Reader {
    root: PathBuf,
    history: History,
    ids: Id,
    /// The position of an open file, by descriptor and file; one that is not here is appended to.
    positions: BTreeMap<(i64, Id), usize>,
    lengths: BTreeMap<Id, usize>,
}

impl Reader {
    fn read(&mut self, call: &str) {
        let Some((name, rest)) = call.split_once('(') else { return };
        let Some((arguments, result)) = rest.rsplit_once(") = ").or_else(|| rest.rsplit_once(" = ")) else {
            return;
        };
        let result = result.trim();
        if result.starts_with('-') || result.starts_with('?') {
            return;
        }
        let arguments = parse(arguments.trim_end().trim_end_matches(')'));
        let (result, opened) = match parse(result.split(' ').next().unwrap()).into_iter().next() {
            Some(Argument::Number(number, path)) => (number, path),
            _ => return,
        };
        self.call(name, &arguments, result, opened);
    }

    fn call(&mut self, name: &str, arguments: &[Argument], result: i64, opened: Option<PathBuf>) {
        match name {
            "open" | "openat" | "creat" => self.open(arguments, result, opened),
            "write" | "writev" | "pwrite64" => self.write(name, arguments, result as usize),
            "copy_file_range" | "sendfile" => self.copy(name, arguments, result as usize),
            "lseek" => {
                if let Some((descriptor, id)) = self.file(&arguments[0]) {
                    self.positions.insert((descriptor, id), result as usize);
                }
            }
            "ftruncate" => {
                if let (Some((_, id)), Argument::Number(length, _)) =
                    (self.file(&arguments[0]), &arguments[1])
                {
                    self.lengths.insert(id, *length as usize);
                    self.history.push(Change::Cut { id, length: *length as usize });
                }
            }
            "fsync" | "fdatasync" => {
                if let Some((_, id)) = self.file(&arguments[0]) {
                    self.history.push(Change::Flush { id });
                }
            }
            "mkdir" | "mkdirat" => {
                if let [path] = &self.paths(arguments)[..] {
                    self.create(path.clone(), true);
                }
            }
            "unlink" | "unlinkat" | "rmdir" => {
                if let [path] = &self.paths(arguments)[..] {
                    self.history.push(Change::Remove { path: path.clone() });
                }
            }
            "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
                let [from, to] = &self.paths(arguments)[..] else { return };
                let (from, to) = (from.clone(), to.clone());
                let exchanges =
                    arguments.iter().any(|a| matches!(a, Argument::Word(w) if w.contains("EXCHANGE")));
                self.history.push(match name {
                    "link" | "linkat" => Change::Link { from, to },
                    _ if exchanges => Change::Exchange { one: from, other: to },
                    _ => Change::Rename { from, to },
                });
            }
            "mmap" => {
                let words =
                    arguments.iter().filter_map(|a| if let Argument::Word(w) = a { Some(w) } else { None });
                let words: Vec<&String> = words.collect();
                let writes = words.iter().any(|w| w.contains("PROT_WRITE"))
                    && words.iter().any(|w| w.contains("MAP_SHARED"));
                assert!(
                    !writes || arguments.iter().all(|a| self.file(a).is_none()),
                    "a file is written by a map"
                );
            }
            other => assert!(self.touches(arguments).is_none(), "{other} is not known here: {arguments:?}"),
        }
    }

    fn touches(&self, arguments: &[Argument]) -> Option<Id> {
        arguments.iter().find_map(|argument| self.file(argument)).map(|(_, id)| id)
    }

    fn open(&mut self, arguments: &[Argument], descriptor: i64, opened: Option<PathBuf>) {
        let flags = arguments.iter().find_map(|a| match a {
            Argument::Word(word) if word.contains("O_") => Some(word.as_str()),
            _ => None,
        });
        let (Some(flags), Some(path)) = (flags, opened.and_then(|path| self.inside(&path))) else { return };
        if flags.contains("O_TMPFILE") || flags.contains("O_DIRECTORY") {
            return;
        }
        let id = match self.history.now().id(&path) {
            Some(id) => id,
            None if flags.contains("O_CREAT") => self.create(path, false),
            None => return,
        };
        if flags.contains("O_TRUNC") && self.lengths.insert(id, 0).is_some_and(|length| length > 0) {
            self.history.push(Change::Cut { id, length: 0 });
        }
        if flags.contains("O_APPEND") {
            self.positions.remove(&(descriptor, id));
        } else {
            self.positions.insert((descriptor, id), 0);
        }
    }

    fn create(&mut self, path: PathBuf, is_folder: bool) -> Id {
        self.ids += 1;
        self.history.push(Change::Create { path, id: self.ids, is_folder });
        self.ids
    }

    fn write(&mut self, name: &str, arguments: &[Argument], written: usize) {
        let Some((descriptor, id)) = self.file(&arguments[0]) else { return };
        let texts =
            arguments.iter().filter_map(|a| if let Argument::Text(text) = a { Some(text) } else { None });
        let mut bytes: Vec<u8> = texts.flatten().copied().collect();
        bytes.truncate(written);
        match (name, arguments.last()) {
            ("pwrite64", Some(Argument::Number(at, _))) => self.put(id, *at as usize, bytes),
            _ => self.put_at_position(descriptor, id, bytes),
        }
    }

    fn put_at_position(&mut self, descriptor: i64, id: Id, bytes: Vec<u8>) {
        let end = self.lengths.get(&id).copied().unwrap_or(0);
        let at = self.positions.get(&(descriptor, id)).copied().unwrap_or(end);
        if let Some(position) = self.positions.get_mut(&(descriptor, id)) {
            *position += bytes.len();
        }
        self.put(id, at, bytes);
    }

    fn put(&mut self, id: Id, at: usize, bytes: Vec<u8>) {
        let length = self.lengths.entry(id).or_default();
        *length = (*length).max(at + bytes.len());
        self.history.push(Change::Write { id, at, bytes });
    }

    /// Whole files are copied, from outside or from here.
    fn copy(&mut self, name: &str, arguments: &[Argument], copied: usize) {
        let (from, to) = if name == "sendfile" { (1, 0) } else { (0, 2) };
        let Some((descriptor, id)) = self.file(&arguments[to]) else { return };
        let Argument::Number(_, Some(path)) = &arguments[from] else { panic!("{arguments:?}") };
        let at = self.positions.get(&(descriptor, id)).copied().unwrap_or(0);
        let bytes = fs::read(path).unwrap()[at..at + copied].to_vec();
        self.put_at_position(descriptor, id, bytes);
    }

    /// The file or folder of a descriptor, if it is inside and has a name.
    fn file(&self, argument: &Argument) -> Option<(i64, Id)> {
        let Argument::Number(descriptor, Some(path)) = argument else { return None };
        Some((*descriptor, self.history.now().id(&self.inside(path)?)?))
    }

    /// The paths that a call names, if all are inside.
    fn paths(&self, arguments: &[Argument]) -> Vec<PathBuf> {
        let mut base = self.root.clone();
        let mut paths = Vec::new();
        for argument in arguments {
            match argument {
                Argument::Number(_, Some(folder)) => base = folder.clone(),
                Argument::Text(path) => {
                    let path = base.join(OsString::from_vec(path.clone()));
                    paths.extend(self.inside(&path));
                }
                _ => {}
            }
        }
        paths
    }

    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let plain = path.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>();
        let rest = plain.strip_prefix(&self.root).ok()?;
        (rest != Path::new("")).then(|| rest.to_owned())
    }
}

/// Splits arguments: `"\x41"`, `5<\x2f>`, `AT_FDCWD<\x2f>`, `O_RDONLY|O_CLOEXEC`, `[{iov_base="\x41", …}]`.
fn parse(text: &str) -> Vec<Argument> {
    let mut arguments = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            let end = rest[1..].find('"').unwrap() + 1;
            arguments.push(Argument::Text(unescaped(&rest[1..end])));
            rest = &rest[end + 1..];
        } else if first.is_ascii_alphanumeric() || first == '-' || first == '_' {
            let end = rest.find([',', '<', '"', ']', '}', '=', ' ', ')']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let mut path = None;
            rest = after;
            if let Some(inner) = after.strip_prefix('<') {
                let (name, after) = inner.split_once('>').unwrap();
                // Something deleted, a pipe or a socket has no place in a tree.
                let (mark, is_hex) = (after.strip_prefix("(deleted)"), name.starts_with("\\x"));
                path = (mark.is_none() && is_hex).then(|| PathBuf::from(OsString::from_vec(unescaped(name))));
                rest = mark.unwrap_or(after);
            }
            arguments.push(match word.parse() {
                Ok(number) => Argument::Number(number, path),
                Err(_) if word == "AT_FDCWD" => Argument::Number(-100, path),
                Err(_) => Argument::Word(word.to_owned()),
            });
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    arguments
}

fn unescaped(text: &str) -> Vec<u8> {
    let byte = |hex: &str| u8::from_str_radix(hex.get(..2)?, 16).ok();
    text.split("\\x").skip(1).filter_map(byte).collect()
}
