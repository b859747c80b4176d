//! Asks a worker all prompts of a suite, several at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;
use sparktune_compare::{Answer, Ask, ReferenceLoss, SuitePrompt};
use sparktune_sampling::protocol::{Finished, Generate, Prompt, Reply, Request, Score};

use crate::failure::{Exit, Failure};
use crate::inference::Worker;
use crate::thought::without_thinking;

/// How often cancelling is looked for while a model computes.
const POLL: Duration = Duration::from_millis(100);

/// Asks all prompts, then for the losses of references. `progress` is called with the number of prompts that
/// are done, often, and says whether to go on. Returns the answers in the order of the prompts and the
/// milliseconds of generating them, or `None` if it was not to go on.
///
/// # Errors
/// The worker has ended.
pub(super) fn ask_all(
    worker: &mut Worker,
    prompts: &[SuitePrompt],
    at_a_time: usize,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<(Vec<Answer>, f64)>, Failure> {
    let has_template = worker.ready().has_template;
    let mut answers: Vec<Answer> =
        prompts.iter().map(|prompt| Answer { prompt: prompt.id.clone(), ..Answer::default() }).collect();
    let started = Instant::now();
    // No more than can be computed at a time, so that the time to the first token is not one of waiting.
    let generated = exchange(worker, prompts.len(), at_a_time, progress, &mut answers, &|i| {
        let generate = Generate {
            id: i.to_string(),
            prompt: prompt_of(&prompts[i], has_template, true),
            adapter: None,
            sampling: prompts[i].sampling.clone(),
        };
        Some(Request::Generate(Box::new(generate)))
    })?;
    let generating_ms = started.elapsed().as_secs_f64() * 1000.0;
    if !generated {
        return Ok(None);
    }
    let mut still_going = |_: usize| progress(prompts.len());
    let scored = exchange(worker, prompts.len(), 1, &mut still_going, &mut answers, &|i| {
        let prompt = &prompts[i];
        let continuation = prompt.reference.clone().filter(|_| prompt.needs_reference_loss())?;
        let score = Score {
            id: i.to_string(),
            // A reference is an answer without what came before it in thought.
            prompt: prompt_of(prompt, has_template, false),
            continuation,
            adapter: None,
        };
        Some(Request::Score(Box::new(score)))
    })?;
    Ok(scored.then_some((answers, generating_ms)))
}

/// Returns what the worker is asked. `thinks` says whether the template may open a think block, if it knows
/// the variable.
fn prompt_of(prompt: &SuitePrompt, has_template: bool, thinks: bool) -> Prompt {
    let (messages, tools) = match &prompt.ask {
        Ask::User(text) if has_template => (json!([{"role": "user", "content": text}]), None),
        Ask::User(text) | Ask::Text(text) => return Prompt::Prompt(text.clone()),
        Ask::Messages { messages, tools } => (messages.clone(), tools.clone()),
    };
    let mut kwargs = prompt.template_kwargs.clone();
    if !thinks {
        kwargs.insert("enable_thinking".to_owned(), json!(false));
    }
    let mut request = json!({"messages": messages, "chat_template_kwargs": kwargs});
    if let Some(tools) = tools {
        request["tools"] = tools;
    }
    Prompt::Messages(request)
}

/// Sends the requests of all prompts, at most `at_a_time` unanswered ones, and notes the replies in the
/// answers. Returns whether all were answered.
fn exchange(
    worker: &mut Worker,
    prompts: usize,
    at_a_time: usize,
    progress: &mut dyn FnMut(usize) -> bool,
    answers: &mut [Answer],
    request: &dyn Fn(usize) -> Option<Request>,
) -> Result<bool, Failure> {
    let mut left = (0..prompts).filter_map(|i| Some((i, request(i)?))).peekable();
    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    let mut thinking: BTreeSet<String> = BTreeSet::new();
    let mut done = 0;
    while left.peek().is_some() || !open.is_empty() {
        if !progress(done) {
            return Ok(false);
        }
        while open.len() < at_a_time {
            let Some((i, request)) = left.next() else { break };
            open.insert(i.to_string(), i);
            worker.send(&request)?;
        }
        let Some(reply) = worker.next(POLL)? else { continue };
        let ended = match reply {
            Reply::Text(piece) => {
                if let Some(i) = open.get(&piece.id) {
                    answers[*i].text.push_str(&piece.text);
                }
                None
            }
            Reply::Accepted { id, opens_thinking: true, .. } => {
                thinking.insert(id);
                None
            }
            Reply::Done { id, finished } => {
                open.remove(&id).map(|i| note_end(&mut answers[i], &finished, thinking.contains(&id)))
            }
            Reply::Scored { id, nats, tokens } => open.remove(&id).map(|i| {
                answers[i].reference = Some(ReferenceLoss { nats, tokens });
            }),
            Reply::Error { id: Some(id), error, .. } => open.remove(&id).map(|i| {
                // An answer that is complete stays one where its reference cannot be scored.
                let answer = &mut answers[i];
                let is_complete = answer.finish_reason.is_some();
                *if is_complete { &mut answer.reference_error } else { &mut answer.error } = Some(error);
            }),
            Reply::Error { id: None, error, .. } | Reply::Failed { error } => {
                return Err(Failure::new(Exit::Device, error));
            }
            Reply::Ready(_) | Reply::Accepted { .. } | Reply::Adapters { .. } => None,
        };
        done += usize::from(ended.is_some());
    }
    Ok(progress(done))
}

fn note_end(answer: &mut Answer, finished: &Finished, opens_thinking: bool) {
    let (thought, text) = without_thinking(&answer.text, opens_thinking);
    (answer.thought, answer.text) = (thought.map(str::to_owned), text.to_owned());
    answer.finish_reason = Some(finished.finish_reason);
    answer.prompt_tokens = finished.usage.prompt_tokens;
    answer.completion_tokens = finished.usage.completion_tokens;
    answer.drafted_tokens = finished.usage.drafted_tokens;
    answer.accepted_tokens = finished.usage.accepted_tokens;
    answer.first_token_ms = Some(finished.first_token_ms);
    answer.total_ms = Some(finished.total_ms);
}

#[cfg(test)]
mod tests {
    use sparktune_compare::Suite;

    use super::*;
    use crate::inference::tests::{READY, start};

    /// Answers each prompt and scores no reference, except that it does not answer one with `odd`.
    const WORKER: &str = r#"
while read -r line; do
    id=$(echo "$line" | sed 's/.*"id":"\([0-9]*\)".*/\1/')
    case $line in
    *'"op":"score"'*) echo '{"event":"error","id":"'"$id"'","error":"too long to score"}' ;;
    *odd*) echo '{"event":"error","id":"'"$id"'","error":"too odd"}' ;;
    *)
        echo '{"event":"text","id":"'"$id"'","text":"six","tokens":[]}'
        echo '{"event":"done","id":"'"$id"'","finish_reason":"stop","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"drafted_tokens":0,"accepted_tokens":0},"seed":1,"first_token_ms":1,"total_ms":1}'
        ;;
    esac
done"#;

    #[test]
    fn a_complete_answer_stays_one_if_its_reference_cannot_be_scored() {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = start(&folder, &format!("echo '{READY}'\n{WORKER}")).unwrap();
        let line = |text: &str| {
            json!({"text": text, "reference": " upon", "checks": [{"type": "perplexity"}]}).to_string()
        };
        let suite = [line("Once"), line("odd")].join("\n");
        let suite = Suite::read("own", suite.as_bytes()).unwrap();
        let (answers, _) = ask_all(&mut worker, &suite.prompts, 2, &mut |_| true).unwrap().unwrap();
        let [once, odd] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((once.text.as_str(), once.error.as_deref()), ("six", None));
        assert!(once.finish_reason.is_some() && once.reference.is_none());
        assert_eq!(once.reference_error.as_deref(), Some("too long to score"));
        assert!(odd.finish_reason.is_none() && odd.error.is_some() && odd.reference_error.is_none());
    }
}
