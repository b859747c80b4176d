//! How machines find their cluster on a link: over loopback, and between network namespaces, each of which
//! has an agent in a process of its own, which is this test again.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sparktune_cluster::ClusterToken;
use sparktune_cluster::discovery::{Answerer, Beacon, GROUP, Kind, LENGTH, PORT, find};
use sparktune_cluster::lab::Lab;
use sparktune_cluster::membership::{Agent, Where};

use crate::free_port;
use crate::membership::{End, Machine, introduction, until};

/// The name of the test that is an agent, for the command line of this program.
const AGENT: &str = "discovery::an_agent_in_a_namespace";
/// Says of an agent what its machine is called, and the token.
const MEMBER: &str = "SPARKTUNE_CLUSTER_AGENT";
/// The machine that begins the cluster.
const FIRST: &str = "spark1";

/// Runs an agent as the program does, until its standard input ends. In an ordinary test run it does nothing.
#[test]
fn an_agent_in_a_namespace() {
    let Ok(member) = std::env::var(MEMBER) else { return };
    let (name, token) = member.split_once(' ').unwrap();
    let (is_first, token) = (name == FIRST, ClusterToken::parse(token).unwrap());
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0));
    let listener = listener.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answerer = is_first.then(|| Answerer::open(&token, PORT, port).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&stop);
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        over.store(true, Ordering::SeqCst);
    });
    println!("listens");
    let agent = Agent {
        token: &token,
        introduction: introduction(name, port),
        coordinates: is_first,
        known: &[],
        call_port: Some(PORT),
        returns_within: Duration::from_secs(10),
        host: &Machine::with(&[]),
        stop: &stop,
        notice: &|line| println!("{line}"),
    };
    let on_the_link = Where::OnTheLink(PORT);
    agent.run(&listener, answerer, (!is_first).then_some(&on_the_link), &mut |_, _| {}).unwrap();
}

/// An agent on a machine of a lab. It ends when this is dropped, also because a test has failed.
struct Member {
    _stdin: ChildStdin,
    /// What it has said.
    lines: Arc<Mutex<Vec<String>>>,
}

impl Member {
    fn start(lab: &Lab, machine: usize, name: &str, token: &ClusterToken) -> Self {
        let mut command = lab.command(machine, std::env::current_exe().unwrap());
        command.args(["--exact", AGENT, "--nocapture"]).env(MEMBER, format!("{name} {}", token.reveal()));
        let mut agent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (_stdin, stdout) = (agent.stdin.take().unwrap(), agent.stdout.take().unwrap());
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (said, name) = (Arc::clone(&lines), name.to_owned());
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                println!("{name}: {line}");
                said.lock().unwrap().push(line);
            }
            let _ = agent.wait();
        });
        Self { _stdin, lines }
    }

    /// Waits until it has said this.
    fn says(&self, what: &str) {
        until(|| self.lines.lock().unwrap().iter().any(|line| line.contains(what)));
    }
}

#[test]
fn a_machine_finds_its_cluster_on_the_link_that_leads_there_and_only_over_that() {
    // The first machine is the cable between the others. Each of those has another link too, which is the
    // one for multicasts that name no link.
    let Some(lab) = Lab::for_test(3, 1) else { return };
    for machine in [1, 2] {
        for words in [
            "link add elsewhere type veth peer name end",
            "link set end up",
            "link set elsewhere up",
            &format!("addr add 10.198.{machine}.1/24 dev elsewhere"),
            "route add default dev elsewhere",
        ] {
            let done = lab.command(machine, "ip").args(words.split(' ')).status().unwrap();
            assert!(done.success(), "{words}");
        }
    }
    let token = ClusterToken::generate();
    let first = Member::start(&lab, 1, FIRST, &token);
    first.says("listens");
    lab.cut(2).unwrap();
    let second = Member::start(&lab, 2, "spark2", &token);
    second.says("no cluster with this token answers on the links of this machine");
    lab.mend(2).unwrap();
    second.says(&format!("member of the cluster of {}:", Lab::address(1)));
    first.says(&format!("spark2 ({}) has joined", Lab::address(2)));
}

#[test]
fn a_test_that_is_skipped_says_so_although_it_passes() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "discovery::a_machine_finds_its_cluster_on_the_link_that_leads_there_and_only_over_that";
    // Without `ip`, there are no namespaces.
    let done = command.args(["--exact", test]).env("PATH", "/nowhere").output().unwrap();
    let [out, err] = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(done.status.success() && out.contains("1 passed"), "{out}{err}");
    assert!(err.contains("skipped: ") && err.contains("no network namespaces can be made here"), "{err}");
}

#[test]
fn a_call_on_the_link_is_answered_by_the_own_cluster_alone() {
    let (token, other) = (ClusterToken::generate(), ClusterToken::generate());
    let port = free_port();
    let mut answerer = Answerer::open(&token, port, 4321).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                answerer.answer_one();
            }
        });
        let end = End(&is_over);
        let found = find(&token, port, None, Duration::from_secs(20), &|| false).unwrap();
        assert_eq!(found.port(), 4321);
        assert_eq!(find(&other, port, None, Duration::from_secs(1), &|| false), None);
        drop(end);
    });
}

#[test]
fn an_answer_to_an_earlier_call_leads_nowhere() {
    let token = ClusterToken::generate();
    let port = free_port();
    // Somebody without the token hears calls, and has recorded an answer.
    let listener = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    listener.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let old = Beacon { kind: Kind::Here { port: 4321 }, from: Ipv4Addr::LOCALHOST.into(), nonce: [1; 16] };
    let recorded = old.to_bytes(&[0; 32]);
    let heard = thread::spawn(move || {
        let mut call = [0; LENGTH];
        let (length, from) = listener.recv_from(&mut call).unwrap();
        assert_eq!(length, LENGTH);
        // The call itself turned into an answer, and the recorded one.
        let mut turned = call;
        turned[5] = 2;
        turned[6..8].copy_from_slice(&4321_u16.to_be_bytes());
        for bytes in [&turned, &recorded, &call] {
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(bytes, from).unwrap();
        }
        from
    });
    assert_eq!(find(&token, port, None, Duration::from_secs(2), &|| false), None);
    assert!(matches!(heard.join().unwrap(), SocketAddr::V4(_)));
}
