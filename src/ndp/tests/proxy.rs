//! A proxy that damages connections at chosen bytes of what the server sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// What happens to a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    None,
    /// The connection ends after this many bytes.
    Cut(u64),
    /// One bit of this byte is flipped.
    Flip(u64),
}

pub(crate) struct Proxy {
    pub port: u16,
    /// The bytes that the server has sent on all connections.
    pub sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy before the server at this port. `fault` decides on each connection, by its number.
    pub(crate) fn start(server: u16, fault: impl Fn(u64) -> Fault + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            for number in 0.. {
                let (client, _) = listener.accept().unwrap();
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || pump(from, to, Fault::None, &AtomicU64::new(0)));
                let (fault, counted) = (fault(number), Arc::clone(&counted));
                std::thread::spawn(move || pump(server, client, fault, &counted));
            }
        });
        Self { port, sent, stop, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().unwrap().join();
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, fault: Fault, counted: &AtomicU64) {
    let (mut buffer, mut passed) = (vec![0; 16 << 10], 0_u64);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let range = passed..passed + count as u64;
        let mut end = count;
        match fault {
            Fault::Cut(at) if at < range.end => end = at.saturating_sub(passed) as usize,
            Fault::Flip(at) if range.contains(&at) => buffer[(at - passed) as usize] ^= 1 << (at % 8),
            _ => {}
        }
        passed = range.end;
        counted.fetch_add(end as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..end]).is_err() || end < count {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
