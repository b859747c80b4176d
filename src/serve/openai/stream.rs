//! Answers as they leave: as a stream of events that ends with `[DONE]`, or collected.

use axum::response::Response;
use serde_json::Value;
use sparktune_app::failure::Failure;
use sparktune_sampling::protocol::{Finished, Piece};

use super::error::ApiError;
use super::types::Sums;
use crate::sse::{self, Events};
use crate::state::Shared;
use crate::workers::{Answers, Event, Refusal};

/// Writes the events of one endpoint.
pub(crate) trait WriteChunks: Send + 'static {
    /// The chunks before the first token of all answers.
    fn begin(&mut self) -> Vec<Value>;
    /// Those for the next tokens of an answer.
    fn piece(&mut self, index: usize, piece: &Piece) -> Vec<Value>;
    /// Those for the end of an answer.
    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value>;
    /// The last one, if the request wants it: the sums of all answers.
    fn usage(&self, sums: &Sums) -> Option<Value>;
    /// The number of answers to each prompt.
    fn choices(&self) -> usize;
}

/// Streams answers. If the reader leaves, they are dropped, which ends the work on them.
pub(crate) fn stream(state: &Shared, mut answers: Answers, mut writer: impl WriteChunks) -> Response {
    sse::stream(state, |mut events| async move {
        let mut sums = Sums::default();
        let mut chunks = writer.begin();
        loop {
            if !events.send(block(&chunks)).await {
                return;
            }
            let Some(next) = events.wait_for(answers.next()).await else { return };
            chunks = match next {
                None => break,
                Some((index, Event::Piece(piece))) => writer.piece(index, &piece),
                Some((index, Event::Done(finished))) => {
                    sums.add(&finished, index % writer.choices() == 0);
                    writer.end(index, &finished)
                }
                Some((_, Event::Accepted { .. })) => Vec::new(),
                Some((_, Event::Refused(refusal))) => {
                    return fail(events, ApiError::failed(refusal.to_string())).await;
                }
                Some((_, Event::Failed { failure, .. })) => return fail(events, ended(failure)).await,
            };
        }
        let last: Vec<Value> = writer.usage(&sums).into_iter().collect();
        let _ = events.send(block(&last) + DONE).await;
    })
}

/// Tells an error in the middle of a stream, whose status was sent long before.
async fn fail(mut events: Events, error: ApiError) {
    let _ = events.send(block(&[error.event()]) + DONE).await;
}

const DONE: &str = "data: [DONE]\n\n";

/// Returns chunks as events without names, as OpenAI's API has them.
fn block(chunks: &[Value]) -> String {
    // JSON has no line breaks outside of strings, where they are escaped.
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Collected {
    /// Its text.
    pub text: String,
    /// Its tokens, in the pieces in which they came.
    pub pieces: Vec<Piece>,
    /// Its end.
    pub finished: Finished,
}

/// Waits for all answers.
///
/// # Errors
/// One of them failed; the others are then not completed.
pub(crate) async fn collect(mut answers: Answers, count: usize) -> Result<Vec<Collected>, ApiError> {
    let mut pieces: Vec<Vec<Piece>> = (0..count).map(|_| Vec::new()).collect();
    let mut ends: Vec<Option<Finished>> = (0..count).map(|_| None).collect();
    while let Some((index, event)) = answers.next().await {
        match event {
            Event::Piece(piece) => pieces[index].push(piece),
            Event::Done(finished) => ends[index] = Some(finished),
            Event::Refused(refusal) => return Err(ApiError::failed(refusal.to_string())),
            Event::Failed { failure, .. } => return Err(ended(failure)),
            Event::Accepted { .. } => {}
        }
    }
    let all = pieces.into_iter().zip(ends).map(|(pieces, finished)| {
        let text = pieces.iter().map(|piece| piece.text.as_str()).collect();
        Some(Collected { text, pieces, finished: finished? })
    });
    all.collect::<Option<_>>().ok_or_else(|| ApiError::failed("an answer has no end. Ask again"))
}

/// The error of answers whose worker has ended.
fn ended(failure: Failure) -> ApiError {
    Refusal::Gone(failure).into()
}
