//! The connections: how many there are, how long their headers may take, how long a client may leave answers
//! unread, and how they end.
//!
//! HTTP/1.1 alone is spoken. The words with which HTTP/2 begins are no request here, and a request to
//! change to it is answered as if it had not been asked.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::state::{Shared, ended};

/// The most headers of a request, and the most bytes of them.
const MOST_HEADERS: usize = 64;
const MOST_HEADER_BYTES: usize = 32 << 10;
/// The most connections at a time that are waited for after they were told that there are too many.
const REFUSED_AT_A_TIME: usize = 256;
/// The time that an answer may take when the server ends.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long to wait when the system has no more handles for connections.
const OUT_OF_HANDLES: Duration = Duration::from_millis(100);

const TOO_MANY: &str = "{\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"this server has too many connections\",\"advice\":\"Close pages and programs that use it, or try again in a few seconds\"}";

/// Accepts connections until `stop` says otherwise, and then lets their answers end.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    state: Shared,
    mut stop: watch::Receiver<bool>,
) {
    let most = state.limits.connections;
    let (places, refusals) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(REFUSED_AT_A_TIME)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ended(&mut stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(OUT_OF_HANDLES).await;
            continue;
        };
        // An event is small and should not wait for the next one.
        let _ = stream.set_nodelay(true);
        // A client that asks and never reads would keep its place for ever. The system ends a connection on
        // which sent bytes are not acknowledged, or the other side has no room for any, for this long. That
        // also ends one that is only very slow, or whose network is gone, so the limit is minutes.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(state.limits.write_time));
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            tokio::spawn(converse(stream, app.clone(), state.clone(), stop.clone(), place));
        } else {
            tokio::spawn(refuse(stream, Arc::clone(&refusals).try_acquire_owned().ok()));
        }
    }
    drop(listener);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let _ = timeout(LAST_WORDS, places.acquire_many(all)).await;
}

/// Answers the requests of one connection.
async fn converse(
    stream: TcpStream,
    app: Router,
    state: Shared,
    mut stop: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let _counted = state.counters.connection();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.limits.header_time)
        .max_headers(MOST_HEADERS)
        .max_header_size(MOST_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // A client that breaks off is nothing to report.
        _ = connection.as_mut() => {}
        () = ended(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(LAST_WORDS, connection).await;
        }
    }
}

/// Says that there are too many connections, and then waits a moment until the client has read it, if there
/// is a place for that: closing with unread bytes would take it back.
async fn refuse(mut stream: TcpStream, place: Option<OwnedSemaphorePermit>) {
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nContent-Length: {}\r\nRetry-After: 2\r\nConnection: close\r\n\r\n",
        TOO_MANY.len()
    );
    let told = async {
        stream.write_all(format!("{head}{TOO_MANY}").as_bytes()).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1024];
        while place.is_some() && stream.read(&mut unread).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    let _ = timeout(Duration::from_secs(1), told).await;
}
