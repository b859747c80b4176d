//! Streams of server-sent events.
//!
//! Whoever produces events waits until they are taken, so a slow reader costs no memory. A stream ends when
//! its reader leaves or the server ends.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::state::{Shared, ended};

/// The time without an event after which a line is sent that readers ignore, so that nobody on the way
/// takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The number of blocks of events that may wait to be sent.
const WAITING: usize = 4;

/// The producer's end of a stream.
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
    stop: watch::Receiver<bool>,
    sent: Instant,
}

/// What happened while a producer waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The time is over.
    Enough,
    /// Nobody listens any more.
    Left,
}

impl Events {
    /// Sends a block of events, which [`frame`] has written. Returns false if nobody listens any more.
    pub(crate) async fn send(&mut self, block: String) -> bool {
        if block.is_empty() {
            return true;
        }
        self.sent = Instant::now();
        self.sender.send(Bytes::from(block)).await.is_ok()
    }

    /// Waits for something for as long as it takes. `None` if the reader leaves or the server ends before.
    pub(crate) async fn wait_for<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        let mut what = std::pin::pin!(what);
        loop {
            tokio::select! {
                done = &mut what => return Some(done),
                () = self.sender.closed() => return None,
                () = ended(&mut self.stop) => return None,
                () = tokio::time::sleep(KEEP_ALIVE) => {}
            }
            if !self.send(":\n\n".to_owned()).await {
                return None;
            }
        }
    }

    /// Waits for some seconds at most, unless the reader leaves or the server ends before.
    pub(crate) async fn pause(&mut self, time: Duration) -> Waited {
        if self.sent.elapsed() >= KEEP_ALIVE && !self.send(":\n\n".to_owned()).await {
            return Waited::Left;
        }
        tokio::select! {
            () = tokio::time::sleep(time) => Waited::Enough,
            () = self.sender.closed() => Waited::Left,
            () = ended(&mut self.stop) => Waited::Left,
        }
    }
}

/// Answers with the events that a task sends, which `produce` starts with the producer's end.
pub(crate) fn stream<F>(state: &Shared, produce: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    let work = produce(Events { sender, stop: state.stop.clone(), sent: Instant::now() });
    let counted = state.clone();
    tokio::spawn(async move {
        let _counted = counted.counters.stream();
        work.await;
    });
    let blocks = ReceiverStream::new(receiver).map(Ok::<_, Infallible>);
    let mut response = Response::new(Body::from_stream(blocks));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Appends an event to a block.
pub(crate) fn frame(block: &mut String, event: &str, id: Option<&str>, data: &str) {
    block.push_str("event: ");
    block.push_str(event);
    if let Some(id) = id {
        block.push_str("\nid: ");
        block.push_str(id);
    }
    // A line break would end the event, and what follows it could be another one.
    for line in data.split(['\n', '\r']) {
        block.push_str("\ndata: ");
        block.push_str(line);
    }
    block.push_str("\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_begin_another_event() {
        let mut block = String::new();
        frame(&mut block, "event", Some("1.2"), "{\"a\":1}\n\nevent: other\rdata: x");
        assert_eq!(
            block,
            "event: event\nid: 1.2\ndata: {\"a\":1}\ndata: \ndata: event: other\ndata: data: x\n\n"
        );
    }
}
