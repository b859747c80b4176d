//! The models of a chat, on a thread of their own, so that the screen never waits for them.
//!
//! Enters: [`Ask`]. Leaves: [`Heard`].

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use sparktune_app::chat::history::{Earlier, HistoryFile};
use sparktune_app::chat::{Chat, Said, Settings};
use sparktune_app::failure::Failure;
use sparktune_app::inference::Decoding;
use sparktune_app::models::OpenableModel;
use sparktune_app::program::Program;

/// How long an answer is waited for before requests are looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the screen asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ask {
    /// Ask all models. The number of the question comes back with each part of its answers.
    Say { question: u64, text: String, settings: Box<Settings> },
    /// End the answers.
    Cancel,
    /// Begin a new conversation.
    BeginAgain,
    /// Load the models again, to decode like this, and go on.
    Decode(Decoding),
}

/// What the screen hears.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Heard {
    /// A model of this name is being loaded.
    Loading(String),
    /// All models are loaded. These have no chat template.
    Loaded { without_template: Vec<String> },
    /// The models decode like this from now on; the failure is why not as they were asked to.
    Decodes { decoding: Decoding, failure: Option<Failure> },
    /// Part of an answer to this question.
    Said { question: u64, said: Said },
    /// The conversation cannot be kept.
    NotKept(String),
    /// The models are gone.
    Ended(Failure),
}

/// Loads the models and serves requests until the screen is gone. A kept conversation goes on.
pub(crate) fn run(
    program: &Program,
    models: &[OpenableModel],
    decoding: Decoding,
    earlier: Option<Earlier>,
    requests: &Receiver<Ask>,
    heard: &Sender<Heard>,
) {
    if let Err(failure) = serve(program, models, decoding, earlier, requests, heard) {
        // If the screen is gone, nobody wants to know.
        let _ = heard.send(Heard::Ended(failure));
    }
}

fn serve(
    program: &Program,
    models: &[OpenableModel],
    decoding: Decoding,
    earlier: Option<Earlier>,
    requests: &Receiver<Ask>,
    heard: &Sender<Heard>,
) -> Result<(), Failure> {
    let tell = |news: Heard| heard.send(news).is_ok();
    let mut chat = Chat::open(program, models, decoding, &mut |name| {
        tell(Heard::Loading(name.to_owned()));
    })?;
    let without_template = chat.without_template().into_iter().map(str::to_owned).collect();
    tell(Heard::Loaded { without_template });
    let mut file = match earlier {
        Some(Earlier { file, turns, .. }) => {
            chat.go_on(&turns);
            Some(file)
        }
        None => HistoryFile::of(models),
    };
    let (mut asked, mut settings): (u64, Option<Box<Settings>>) = (0, None);
    loop {
        let request = if chat.is_answering() {
            match requests.try_recv() {
                Ok(request) => Some(request),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        } else {
            match requests.recv_timeout(Duration::from_secs(3600)) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        };
        match request {
            Some(Ask::Say { question, text, settings: wanted }) => {
                chat.say(&text, &wanted)?;
                (asked, settings) = (question, Some(wanted));
            }
            Some(Ask::Cancel) => chat.cancel()?,
            Some(Ask::BeginAgain) => {
                chat.begin_again()?;
                file = HistoryFile::of(models);
            }
            Some(Ask::Decode(decoding)) => {
                let failure = chat.decode_otherwise(program, decoding, &mut |name| {
                    tell(Heard::Loading(name.to_owned()));
                })?;
                tell(Heard::Decodes { decoding: chat.decoding(), failure });
            }
            None => {}
        }
        if chat.is_answering() {
            let news = chat.next(PATIENCE)?;
            // A conversation is kept before its end is shown, because a person may leave at once then.
            if let (false, Some(file), Some(settings)) = (chat.is_answering(), &file, &settings)
                && let Err(failure) = file.write(&chat.kept(settings))
            {
                tell(Heard::NotKept(failure.to_string()));
            }
            for said in news {
                if !tell(Heard::Said { question: asked, said }) {
                    return Ok(());
                }
            }
        }
    }
}
