//! What a key copies from a run into the terminal's clipboard: its folder, and the commands that people type
//! next.

use std::path::Path;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use sparktune_app::shell::run_argument;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::shell::shown_word;
use sparktune_runlog::RunDir;

use crate::screen::{Popup, Role, Theme};
use crate::wrap::cut;

/// The widest text that the box shows.
const WIDEST: usize = 64;

/// What can be copied, each with its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copies(Vec<(&'static str, String)>);

impl Copies {
    /// Lists what there is of a run. `serve` is its page on serving, if it has one.
    pub(super) fn of(run: &RunDir, serve: Option<&str>) -> Self {
        let (program, argument) = (program_name(), run_argument(run));
        let folder = std::path::absolute(run.path()).unwrap_or_else(|_| run.path().to_owned());
        let word = |path: &Path| shown_word(path.as_os_str());
        let mut all = vec![
            ("folder", word(&folder)),
            ("watch it", format!("{program} watch {argument}")),
            ("train the same again", format!("{program} train --preset {}", word(&folder.join("plan.toml")))),
        ];
        if let Some(command) = serve.and_then(first_command) {
            all.push(("talk to it", format!("{program} chat {argument}")));
            all.push(("serve it", command));
        }
        Self(all)
    }

    /// Returns the label and the text of a digit.
    pub(super) fn at(&self, digit: char) -> Option<&(&'static str, String)> {
        self.0.get(digit.to_digit(10)?.checked_sub(1)? as usize)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let mut lines = Vec::new();
        for (number, (label, text)) in (1..).zip(&self.0) {
            lines.push(Line::from(vec![
                Span::styled(format!("{number} "), theme.style(Role::Accent)),
                Span::raw(*label),
            ]));
            let text = escape(text.lines().next().unwrap_or_default()).into_owned();
            lines.push(Line::styled(format!("  {}", cut(&text, WIDEST)), theme.style(Role::Dim)));
        }
        Popup { title: "copy what?", role: Role::Accent, lines, keys: "1–9 copy   esc close" }
            .draw(frame, area, theme);
    }
}

/// Returns the first command of a page in Markdown: the first fenced block.
fn first_command(page: &str) -> Option<String> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with("```")).skip(1);
    let block: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
    (!block.is_empty()).then(|| block.join("\n"))
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::RunsRoot;

    use super::*;

    #[test]
    fn a_finished_run_offers_the_command_that_serves_it() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "lora").unwrap();
        let running = Copies::of(&run, None);
        assert_eq!(running.0.len(), 3);
        assert!(running.at('1').unwrap().1.contains(&run.name()) && running.at('4').is_none());
        assert!(running.at('3').unwrap().1.ends_with("plan.toml"), "{running:?}");
        let finished =
            Copies::of(&run, Some("# Serve\n\n```sh\nvllm serve a \\\n  --b\n```\n\n```\nother\n```\n"));
        assert_eq!(finished.at('5').unwrap(), &("serve it", "vllm serve a \\\n  --b".to_owned()));
        assert_eq!((finished.at('0'), finished.at('x'), finished.at('6')), (None, None, None));
    }
}
