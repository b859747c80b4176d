//! Machines that are none: network namespaces, each with one interface to the bridge of the first. For tests
//! and measurements of several ranks on one machine, whose packets would otherwise never leave it.
//!
//! What is measured there says whether something is right and what it costs a processor, not how fast a
//! network is: both ends of every cable are this machine's processors.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The interface of the first machine.
pub const BRIDGE: &str = "bridge";
/// The interface of every machine but the first.
pub const INTERFACE: &str = "cable";

/// So many machines, which are gone when this is dropped.
#[derive(Debug)]
pub struct Lab {
    names: Vec<String>,
}

impl Lab {
    /// Makes machines.
    ///
    /// # Errors
    /// This process may not do that, or `ip` of iproute2 is not here.
    pub fn new(machines: usize) -> io::Result<Self> {
        Self::with_queues(machines, 1)
    }

    /// Makes machines for a test, whose interfaces have so many queues for what comes. Where there can be
    /// none, says that the test is [skipped].
    pub fn for_test(machines: usize, queues: usize) -> Option<Self> {
        let made = Self::with_queues(machines, queues);
        made.inspect_err(|error| skipped(format!("no network namespaces can be made here: {error}"))).ok()
    }

    fn with_queues(machines: usize, queues: usize) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = std::process::id();
        let mut lab = Self { names: Vec::new() };
        for machine in 0..machines {
            let name = format!("sparktune-{own}-{count}-{machine}");
            ip(&["netns", "add", &name])?;
            lab.names.push(name);
        }
        let first = lab.names[0].clone();
        ip(&["-n", &first, "link", "set", "lo", "up"])?;
        ip(&["-n", &first, "link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["-n", &first, "addr", "add", &format!("{}/24", Self::address(0)), "dev", BRIDGE])?;
        ip(&["-n", &first, "link", "set", BRIDGE, "up"])?;
        for (machine, name) in lab.names.iter().enumerate().skip(1) {
            let port = Self::port(machine);
            let [peer, address] = [INTERFACE.to_owned(), format!("{}/24", Self::address(machine))];
            let count = queues.to_string();
            let queues = ["numtxqueues", &count, "numrxqueues", &count];
            let mut link = vec!["-n", &first, "link", "add", "dev", &port];
            link.extend(queues);
            link.extend(["type", "veth", "peer", "name", &peer]);
            link.extend(queues);
            link.extend(["netns", name]);
            ip(&link)?;
            ip(&["-n", &first, "link", "set", "dev", &port, "master", BRIDGE])?;
            ip(&["-n", &first, "link", "set", "dev", &port, "up"])?;
            ip(&["-n", name, "link", "set", "dev", "lo", "up"])?;
            ip(&["-n", name, "addr", "add", &address, "dev", INTERFACE])?;
            ip(&["-n", name, "link", "set", "dev", INTERFACE, "up"])?;
        }
        Ok(lab)
    }

    /// Returns the address of a machine.
    pub fn address(machine: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 199, 0, u8::try_from(machine + 1).expect("a lab has few machines"))
    }

    /// Returns the interface of the first machine that leads to another.
    pub fn port(machine: usize) -> String {
        format!("port{machine}")
    }

    /// Cuts the cable of a machine other than the first: nothing arrives any more either way, and no
    /// connection is closed.
    ///
    /// # Errors
    /// `ip` cannot do that.
    pub fn cut(&self, machine: usize) -> io::Result<()> {
        self.set_cable(machine, "down")
    }

    /// Mends the cable of a machine that was cut off.
    ///
    /// # Errors
    /// `ip` cannot do that.
    pub fn mend(&self, machine: usize) -> io::Result<()> {
        self.set_cable(machine, "up")
    }

    fn set_cable(&self, machine: usize, state: &str) -> io::Result<()> {
        ip(&["-n", &self.names[0], "link", "set", "dev", &Self::port(machine), state])
    }

    /// Returns a command that runs a program on a machine.
    pub fn command(&self, machine: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine]]).arg(program);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            // Nothing else can be done about one that stays.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

/// Says on standard error that the calling test is skipped, and why. It writes there directly, because the
/// test harness holds back what is printed by tests that pass.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Whoever has closed the output does not read it.
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| io::Error::other(format!("`ip` cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("it does not say why").to_owned();
    Err(io::Error::other(format!("`ip {}` failed: {first}", arguments.join(" "))))
}
