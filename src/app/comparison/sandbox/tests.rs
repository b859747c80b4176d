//! What code can do in the sandbox, and what it cannot. On a machine whose kernel refuses the sandbox, these
//! tests print that they are skipped.

use sparktune_compare::{Answered, Suite};

use super::*;

fn sandbox() -> Option<Sandbox> {
    match Sandbox::open() {
        // Endless code must not make the tests long.
        Ok(sandbox) => Some(Sandbox { seconds: 2, ..sandbox }),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Returns what Python prints inside.
fn printed(sandbox: &Sandbox, program: &str) -> String {
    let ended = sandbox.output(program, "", &|| false).unwrap();
    format!("{}{}", ended.output, ended.errors)
}

#[test]
fn code_reaches_no_network_no_process_and_no_file_of_the_user() {
    let Some(sandbox) = sandbox() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)");
    assert!(printed(&sandbox, &connect).contains("OSError"), "{}", printed(&sandbox, &connect));
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    for program in [
        format!("open({secret:?})"),
        "open('/etc/passwd')".to_owned(),
        "open('/proc/1/environ')".to_owned(),
        "open('/usr/new', 'w')".to_owned(),
        "open('/old/etc/passwd')".to_owned(),
        // The system's folders cannot be made writable again.
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         assert libc.mount(b'none', b'/usr', None, 32 | 4096, None) == 0"
            .to_owned(),
    ] {
        let output = printed(&sandbox, &program);
        assert!(output.contains("Error"), "{program}: {output}");
    }
    let environment = printed(&sandbox, "import os\nprint(sorted(os.environ))");
    assert!(!environment.contains("CARGO"), "{environment}");
    assert_eq!(printed(&sandbox, "open('/work/a', 'w').write('b'); print(open('/work/a').read())"), "b\n");
    assert_eq!(printed(&sandbox, "import os; print(os.listdir('/work'))"), "[]\n", "it is empty each time");
}

#[test]
fn memory_files_processes_and_time_are_limited() {
    let Some(sandbox) = sandbox() else { return };
    for (program, words) in [
        ("x = bytearray(4 << 30)", "MemoryError"),
        ("f = open('/work/a', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()", "Error"),
        ("import os\nwhile True: os.fork()", "BlockingIOError"),
    ] {
        let output = printed(&sandbox, program);
        assert!(output.contains(words), "{program}: {output}");
    }
    let started = std::time::Instant::now();
    printed(&sandbox, "while True: pass");
    assert!(started.elapsed() < PATIENCE + Duration::from_secs(60));
}

/// Checks an answer to a prompt of the suite `coding` with the sandbox; returns how many checks pass.
fn passed(sandbox: &Sandbox, suite: &Suite, id: &str, text: &str) -> (usize, usize) {
    let prompt = suite.prompts.iter().find(|prompt| prompt.id == id).unwrap();
    let run = |job: &CodeJob| sandbox.run(job, &|| false);
    let reference_loss = Err(String::new());
    let answered = Answered { text, reference: None, reference_loss, run: &run };
    let outcomes: Vec<_> = prompt.checks.iter().map(|check| check.outcome(&answered)).collect();
    (outcomes.iter().filter(|outcome| outcome.passed == Some(true)).count(), outcomes.len())
}

#[test]
fn a_good_answer_to_each_task_of_the_coding_suite_passes_and_a_bad_one_does_not() {
    let Some(sandbox) = sandbox() else { return };
    let suite = crate::comparison::find_suite("coding").unwrap();
    let good = [
        (
            "write-1",
            "```python\ndef is_palindrome(text):\n    t = [c.lower() for c in text if c.isalnum()]\n    return t == t[::-1]\n```",
        ),
        (
            "write-2",
            "```python\ndef word_counts(text):\n    counts = {}\n    for word in text.lower().split():\n        counts[word] = counts.get(word, 0) + 1\n    return counts\n```",
        ),
        ("complete-1", " max(low, min(value, high))"),
        ("complete-2", "1, n + 1):\n        result *= i\n    return result"),
        ("repair-1", "```python\ndef largest(numbers):\n    return max(numbers, default=None)\n```"),
        ("repair-2", "```python\ndef unique(items):\n    return list(dict.fromkeys(items))\n```"),
        ("explain-1", "It returns the Fibonacci number of index n. For n = 6 that is 8."),
        ("explain-2", "len(numbers) is 0, so the division raises ZeroDivisionError."),
        (
            "test-1",
            "```python\nassert leap(2000)\nassert not leap(1900)\nassert leap(2024)\nassert not leap(2023)\n```",
        ),
        (
            "test-2",
            "```python\nassert middle(1, 2, 3) == 2\nassert middle(2, 3, 1) == 2\nassert middle(3, 1, 2) == 2\n```",
        ),
        (
            "sql-1",
            "```sql\nselect name, sum(total) from orders join customers on customers.id = customer group by name order by 2 desc;\n```",
        ),
        ("sql-2", "```sql\nselect name from customers where id not in (select customer from orders)\n```"),
    ];
    assert_eq!(
        good.map(|(id, _)| id).to_vec(),
        suite.prompts.iter().map(|p| p.id.as_str()).collect::<Vec<_>>()
    );
    for (id, text) in good {
        let (passed, all) = passed(&sandbox, &suite, id, text);
        assert_eq!(passed, all, "{id}");
    }
    for (id, text) in [
        ("write-1", "```python\ndef is_palindrome(text):\n    return text == text[::-1]\n```"),
        ("write-2", "```python\nimport os\nos._exit(0)\ndef word_counts(text): pass\n```"),
        ("complete-1", " min(value, high)"),
        ("repair-1", "```python\ndef largest(numbers):\n    while True: pass\n```"),
        ("test-1", "```python\nassert True\n```"),
        ("test-2", "```python\nassert middle(1, 2, 3) == 3\n```"),
        ("sql-2", "```sql\nselect name from customers\n```"),
    ] {
        let (passed, all) = passed(&sandbox, &suite, id, text);
        assert!(passed < all, "{id}");
    }
}
