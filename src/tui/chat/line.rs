//! What a typed line means: a question, or a command that begins with `/`. Full screens and plain lines share
//! it.

use serde_json::Value;
use sparktune_app::chat::Settings;
use sparktune_app::inference::Decoding;
use sparktune_plan::choices::Device;

/// The commands, as the help lists them.
pub const COMMANDS: [(&str, &str); 10] = [
    ("/new", "begin a new conversation"),
    ("/system TEXT", "set the system prompt; without TEXT, remove it"),
    ("/set", "show how tokens are chosen: temperature, max-tokens, …"),
    ("/set NAME VALUE", "change one of these settings"),
    ("/think on|off|auto", "whether the template lets the model think first"),
    ("/device cpu|cuda", "load the models again, on the CPU or the GPU"),
    ("/draft N", "draft N tokens with the MTP head, or none with 0"),
    ("/help", "list these commands"),
    ("//TEXT", "say a line that begins with /"),
    ("/quit", "leave"),
];

/// A line that a person typed.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// Nothing.
    Empty,
    /// Something to say to the models.
    Say(String),
    /// Begin a new conversation.
    New,
    /// The settings have changed, or are asked for; the words say which.
    Told(String),
    /// Load the models again, to decode like this.
    Decode(Decoding),
    /// Show the commands.
    Help,
    /// Leave.
    Quit,
}

/// Reads a line, and changes the settings if it says so. `decoding` is how the models decode now.
///
/// # Errors
/// There is no such command, or a value is out of its range: a sentence that says what to type instead.
pub fn read(line: &str, settings: &mut Settings, decoding: Decoding) -> Result<Line, String> {
    let line = line.trim();
    let Some(command) = line.strip_prefix('/') else {
        return Ok(if line.is_empty() { Line::Empty } else { Line::Say(line.to_owned()) });
    };
    if command.starts_with('/') {
        return Ok(Line::Say(command.to_owned()));
    }
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    match word {
        "new" => Ok(Line::New),
        "help" | "?" => Ok(Line::Help),
        "quit" | "exit" | "q" => Ok(Line::Quit),
        "system" => {
            rest.clone_into(&mut settings.system);
            let told = if rest.is_empty() {
                "there is no system prompt now"
            } else {
                "the system prompt is set; the model reads it before the whole conversation, also before what \
                 was said already (/new begins another)"
            };
            Ok(Line::Told(told.to_owned()))
        }
        "think" => {
            settings.thinking = match rest {
                "on" => Some(true),
                "off" => Some(false),
                "auto" => None,
                _ => return Err("/think takes on, off or auto".to_owned()),
            };
            Ok(Line::Told(format!("thinking: {rest}")))
        }
        "set" => set(rest, settings),
        "device" => {
            let device: Device = rest.parse().map_err(|_| "/device takes cpu or cuda".to_owned())?;
            Ok(decode(Decoding { device, ..decoding }, decoding))
        }
        "draft" => {
            let draft_tokens = rest.parse().map_err(|_| "/draft takes a number of tokens".to_owned())?;
            Ok(decode(Decoding { draft_tokens, ..decoding }, decoding))
        }
        _ => Err("there is no such command; /help lists them, and // begins a line with a slash".to_owned()),
    }
}

/// Models are not loaded again for what they do already.
fn decode(wanted: Decoding, now: Decoding) -> Line {
    if wanted == now { Line::Told(format!("answers are already made {now}")) } else { Line::Decode(wanted) }
}

fn set(rest: &str, settings: &mut Settings) -> Result<Line, String> {
    let mut all = serde_json::to_value(&settings.sampling).map_err(|error| error.to_string())?;
    if rest.is_empty() {
        return Ok(Line::Told(in_words(&all)));
    }
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let field = name.trim_start_matches('-').replace('-', "_");
    if !names(&all).contains(&field.replace('_', "-")) {
        return Err(format!("there is no setting of this name; there are: {}", names(&all).join(", ")));
    }
    let number: Value = match value.trim() {
        "none" if all[&field].is_null() || field == "seed" || field == "max_tokens" => Value::Null,
        text => serde_json::from_str(text).map_err(|_| format!("/set {name} takes a number"))?,
    };
    all[&field] = number;
    let sampling = serde_json::from_value::<sparktune_sampling::SamplingParams>(all)
        .map_err(|_| format!("/set {name} takes another kind of number, such as a whole one"))?;
    sampling.check().map_err(|error| error.to_string().replace('_', "-"))?;
    settings.sampling = sampling;
    Ok(Line::Told(format!("{}: {}", field.replace('_', "-"), value.trim())))
}

/// The names of settings that are numbers and that a chat shows the effect of.
fn names(all: &Value) -> Vec<String> {
    let fields = all.as_object().into_iter().flatten();
    fields
        .filter(|(name, value)| (value.is_number() || value.is_null()) && *name != "logprobs")
        .map(|(name, _)| name.replace('_', "-"))
        .collect()
}

fn in_words(all: &Value) -> String {
    let of = |name: String| {
        let value = &all[name.replace('-', "_")];
        if value.is_null() { format!("{name} none") } else { format!("{name} {value}") }
    };
    names(all).into_iter().map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use sparktune_sampling::SamplingParams;

    use super::*;

    fn settings() -> Settings {
        Settings { system: String::new(), sampling: SamplingParams::default(), thinking: None }
    }

    #[test]
    fn a_line_is_said_unless_it_begins_with_one_slash() {
        let mut settings = settings();
        let mut read = |line: &str| read(line, &mut settings, Decoding::default()).unwrap();
        assert_eq!(read("  what is 1/2? "), Line::Say("what is 1/2?".into()));
        assert_eq!(read("//etc is what?"), Line::Say("/etc is what?".into()));
        assert_eq!(
            [read(""), read("/new"), read("/quit"), read("/help")],
            [Line::Empty, Line::New, Line::Quit, Line::Help]
        );
    }

    #[test]
    fn commands_change_settings_or_say_what_to_type() {
        let mut s = settings();
        for line in
            ["/system Be brief.", "/set temperature 0", "/set top-k 40", "/set --seed 7", "/think off"]
        {
            assert!(matches!(read(line, &mut s, Decoding::default()), Ok(Line::Told(_))), "{line}");
        }
        assert_eq!((s.system.as_str(), s.thinking), ("Be brief.", Some(false)));
        assert_eq!((s.sampling.temperature, s.sampling.top_k, s.sampling.seed), (0.0, 40, Some(7)));
        let before = s.clone();
        for (line, words) in [
            ("/set heat 1", "temperature"),
            ("/set temperature", "number"),
            ("/set temperature -1", "temperature is -1"),
            ("/set top-k 1.5", "whole"),
            ("/set stop 3", "no setting"),
            ("/set max_tokens 0", "max-tokens is 0"),
            ("/think perhaps", "on, off or auto"),
            ("/fly", "/help"),
            ("/device tpu", "cpu or cuda"),
            ("/draft some", "number"),
            ("/set temperature \u{1b}[31m", "number"),
        ] {
            let error = read(line, &mut s, Decoding::default()).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
            assert!(!error.contains('\u{1b}'));
        }
        assert_eq!(s, before);
        read("/set seed none", &mut s, Decoding::default()).unwrap();
        assert_eq!(s.sampling.seed, None);
        let Ok(Line::Told(told)) = read("/set", &mut s, Decoding::default()) else { panic!("it tells all") };
        assert!(told.contains("top-k 40") && told.contains("seed none") && !told.contains("stop"), "{told}");
    }

    #[test]
    fn models_decode_elsewhere_if_a_line_says_so() {
        let mut s = settings();
        let now = Decoding { device: Device::Cpu, draft_tokens: 3 };
        let mut read = |line: &str| read(line, &mut s, now).unwrap();
        assert_eq!(read("/device cuda"), Line::Decode(Decoding { device: Device::Cuda, ..now }));
        assert_eq!(read("/draft 0"), Line::Decode(Decoding { draft_tokens: 0, ..now }));
        let told = Line::Told("answers are already made on cpu with 3 drafted tokens".into());
        assert_eq!([read("/device cpu"), read("/draft 3")], [told.clone(), told]);
    }
}
