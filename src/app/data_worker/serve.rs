//! The worker itself: it answers requests on standard input until that is closed.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use sparktune_data::{
    ChatTokenizer, CheckOptions, Phase, Progress, Rejection, Step, check, find_examples, observe, pack_text,
    prepare, preview,
};

use super::ledger::{Pages, mark_failed};
use super::protocol::{CheckRequest, FromWorker, Now, PackRequest, PreviewRequest, Reply, Request, ToWorker};
use super::watch::memory_limit;
use crate::failure::{Exit, Failure};
use crate::template::set_template_kwargs;

/// The address space that the allocator and the stacks of threads reserve without using it.
const RESERVED: u64 = 4 << 30;
/// The shortest time between two reports of progress.
const BETWEEN_STEPS: Duration = Duration::from_millis(100);

/// Answers the requests of the parent process until it closes standard input.
///
/// # Errors
/// There is no parent to answer to.
pub fn serve() -> Result<Exit, Failure> {
    // The parent looks at the memory some times a second; this holds if it cannot look.
    limit_memory(0);
    observe(Box::new(Pages));
    std::panic::set_hook(Box::new(|panic| {
        if mark_failed() {
            eprintln!("{panic}");
            std::process::abort();
        }
    }));
    let cancelled = Arc::new(AtomicBool::new(false));
    let requests = requests(cancelled.clone());
    let reports = Reports { cancelled, last: Mutex::default() };
    let mut tokenizer = None;
    for request in requests {
        reply(&match answer(request, &mut tokenizer, &reports) {
            Ok(reply) => FromWorker::Done(Box::new(reply)),
            Err(failure) => FromWorker::Failed(failure),
        })?;
    }
    Ok(Exit::Done)
}

fn limit_memory(examples: u64) {
    let bytes = memory_limit(examples) + RESERVED;
    // Without it, the parent alone watches the memory.
    let _ = setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: None });
}

/// Reads requests on a thread of their own, so that a cancel and the parent's end are noticed at any time.
fn requests(cancelled: Arc<AtomicBool>) -> Receiver<Request> {
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines() {
            match line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                Some(ToWorker::Request(request)) => {
                    // Here, since a cancel of this request may be read before the request is begun.
                    cancelled.store(false, Ordering::Relaxed);
                    if sender.send(*request).is_err() {
                        break;
                    }
                }
                Some(ToWorker::Cancel) => cancelled.store(true, Ordering::Relaxed),
                None => break,
            }
        }
        // The parent is gone, and nothing here may outlive it. Nothing is left to be written either.
        let _ = kill_process(getpid(), Signal::KILL);
    });
    requests
}

fn reply(reply: &FromWorker) -> Result<(), Failure> {
    let mut line =
        serde_json::to_string(reply).map_err(|error| Failure::new(Exit::Bug, error.to_string()))?;
    line.push('\n');
    let mut output = stdout().lock();
    output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(Failure::from)
}

fn answer(
    request: Request,
    opened: &mut Option<ChatTokenizer>,
    progress: &Reports,
) -> Result<Reply, Failure> {
    if let Request::Open { folder, template } = request {
        let tokenizer = opened.insert(ChatTokenizer::open(&folder, template.as_deref())?);
        return Ok(Reply::Opened { oddities: tokenizer.oddities().collect(), now: now(tokenizer) });
    }
    let Some(tokenizer) = opened else {
        return Err(Failure::new(Exit::Bug, "the process that reads the data has no tokenizer"));
    };
    Ok(match request {
        Request::Open { .. } => unreachable!("it was answered before"),
        Request::SetKwargs(kwargs) => {
            tokenizer.set_kwargs(kwargs);
            Reply::Now(now(tokenizer))
        }
        Request::ChooseKwargs { given, inputs, format, map } => {
            set_template_kwargs(tokenizer, given, &inputs, (format, &map), progress)?;
            Reply::Now(now(tokenizer))
        }
        Request::Check(request) => {
            let CheckRequest { inputs, eval_data, format, map, policy, examples, .. } = request;
            let options = CheckOptions {
                format,
                map,
                tokenizer: Some(tokenizer),
                policy,
                examples,
                max_example_tokens: request.max_example_tokens,
                vocabulary: request.vocabulary,
                on_damage: request.on_damage,
                eval_data,
                rejected_path: request.rejected_path,
            };
            Reply::Checked(check(&inputs, &options, progress)?)
        }
        Request::Prepare(asked) => {
            Reply::Prepared(prepare(&asked.inputs, tokenizer, &asked.options, &asked.folder, progress)?)
        }
        Request::Preview(PreviewRequest { inputs, options, wanted }) => Reply::Preview(match wanted {
            None => preview(&inputs, tokenizer, &options)?,
            Some(wanted) => find_examples(&inputs, &wanted, tokenizer, &options, progress)?,
        }),
        Request::Prompts(texts) => {
            let prompts = texts.iter().map(|text| tokenizer.encode_prompt(text));
            Reply::Prompts(prompts.collect::<Result<_, _>>().map_err(refused_prompt)?)
        }
        Request::Render { messages, kwargs } => {
            tokenizer.set_kwargs(kwargs);
            Reply::Rendered(tokenizer.render_messages(&messages))
        }
        Request::Pack(PackRequest { inputs, options, output }) => {
            Reply::Packed(pack_text(&inputs, tokenizer, &options, Path::new(&output), progress)?)
        }
    })
}

fn refused_prompt(refused: Rejection) -> Failure {
    Failure::new(
        Exit::Data,
        format!("a --sample-prompt cannot be rendered: {}. {}", refused.reason, refused.fix),
    )
}

fn now(tokenizer: &ChatTokenizer) -> Now {
    Now {
        thinking: tokenizer.thinking_now(),
        fingerprint: tokenizer.fingerprint(),
        kwargs: tokenizer.kwargs().clone(),
    }
}

/// Reports progress to the parent, and asks it whether to go on.
struct Reports {
    cancelled: Arc<AtomicBool>,
    /// The phase and the time of the last report.
    last: Mutex<Option<(Phase, Instant)>>,
}

impl Progress for Reports {
    fn step(&self, step: Step) {
        let Ok(mut last) = self.last.lock() else { return };
        let is_due = last.is_none_or(|(phase, at)| phase != step.phase || at.elapsed() >= BETWEEN_STEPS);
        if is_due {
            *last = Some((step.phase, Instant::now()));
            limit_memory(step.examples);
            // A parent that is gone ends this process otherwise.
            let _ = reply(&FromWorker::Step(step));
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
