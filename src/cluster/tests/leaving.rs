//! A coordinator that leaves the cluster: nobody waits for its return.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sparktune_cluster::ClusterToken;
use sparktune_cluster::membership::messages::Introduction;
use sparktune_cluster::membership::{Agent, Where, forget, members};

use crate::membership::{End, Machine, introduction, never, until};

#[test]
fn when_the_coordinator_leaves_another_member_takes_its_place_at_once() {
    let token = ClusterToken::generate();
    let machines = [(); 3].map(|()| Machine::with(&[]));
    let stops = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let names = |port: u16| {
        let all = members("127.0.0.1", port, &token, never()).unwrap_or_default();
        all.into_iter().map(|found| found.member.introduction.name).collect::<Vec<_>>()
    };
    let ids = ["c", "a", "b"].map(|digit| digit.repeat(32));
    // How many others each of them knows.
    let heard = [(); 3].map(|()| AtomicUsize::new(0));
    // Whether it is connected to the second one.
    let follows = [(); 3].map(|()| AtomicBool::new(false));
    let (token, ids, heard, follows) = (&token, &ids, &heard, &follows);
    thread::scope(|scope| {
        for at in 0..3 {
            let (machine, listener, stop) = (&machines[at], &listeners[at], &stops[at]);
            scope.spawn(move || {
                let named = introduction(&format!("spark{at}"), ports[at]);
                let agent = Agent {
                    token,
                    introduction: Introduction { id: ids[at].clone(), ..named },
                    coordinates: at == 0,
                    known: &[],
                    call_port: None,
                    // Longer than the test may take.
                    returns_within: Duration::from_secs(3600),
                    host: machine,
                    stop,
                    notice: &|text| {
                        if text.contains(&format!("member of the cluster of 127.0.0.1:{}", ports[1])) {
                            follows[at].store(true, Ordering::SeqCst);
                        }
                    },
                };
                let first = Where::At("127.0.0.1".into(), ports[0]);
                let mut keep = |_: Option<(&str, u16)>, others: &[SocketAddr]| {
                    heard[at].store(others.len(), Ordering::SeqCst);
                };
                agent.run(listener, None, (at > 0).then_some(&first), &mut keep).unwrap();
            });
        }
        let _ends = stops.each_ref().map(|stop| End(stop));
        until(|| names(ports[0]).len() == 3);
        until(|| heard[1..].iter().all(|heard| heard.load(Ordering::SeqCst) == 2));
        for port in &ports[1..] {
            forget("127.0.0.1", *port, token, &ids[0], never()).unwrap();
        }
        stops[0].store(true, Ordering::SeqCst);
        until(|| ports[1..].iter().all(|port| names(*port) == ["spark1", "spark2"]));
        until(|| follows[2].load(Ordering::SeqCst));
        // The last one is alone then.
        forget("127.0.0.1", ports[2], token, &ids[1], never()).unwrap();
        stops[1].store(true, Ordering::SeqCst);
        until(|| names(ports[2]) == ["spark2"]);
    });
}
