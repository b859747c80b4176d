use sparktune_data::*;
use std::path::PathBuf;
fn rss() -> String {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS")).collect::<Vec<_>>().join(" ")
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    match a[1].as_str() {
        "sample" => write_sample(&PathBuf::from(&a[2]), a[3].parse().unwrap()).unwrap(),
        "validate" => {
            for _ in 0..3 {
                let t = measure_validation(&[PathBuf::from(&a[2])]).unwrap();
                println!(
                    "validate {:.0} MB/s {:.2}s {} ex; {}",
                    t.megabytes_per_s(),
                    t.seconds,
                    t.examples,
                    rss()
                );
            }
        }
        "tokenise" => {
            let tok = ChatTokenizer::from_dir(&PathBuf::from(&a[3])).unwrap();
            let t = measure_tokenising(&[PathBuf::from(&a[2])], &tok).unwrap();
            println!(
                "tokenise {:.2} MB/s text, {:.0} tok/s {:.2}s; {}",
                t.megabytes_per_s(),
                t.tokens_per_s(),
                t.seconds,
                rss()
            );
        }
        "prepare" => {
            let tok = ChatTokenizer::from_dir(&PathBuf::from(&a[3])).unwrap();
            let t = std::time::Instant::now();
            let p = prepare(
                &[PathBuf::from(&a[2])],
                &tok,
                &PrepareOptions::default(),
                &PathBuf::from(&a[4]),
                &(),
            )
            .unwrap();
            println!("reused {} {:.2}s {}\n{}", p.reused, t.elapsed().as_secs_f64(), rss(), p.report);
        }
        "render" => {
            // render TEMPLATE_DIR LINES -> json per line
            let tok = ChatTokenizer::from_dir(&PathBuf::from(&a[2])).unwrap();
            eprintln!("{:?}", tok.thinking());
            for l in std::fs::read_to_string(&a[3]).unwrap().lines() {
                let r = match parse_line(Some(Format::Messages), l) {
                    Ok(Conversation::Chat(c)) => match tok.render_targets(&c, MaskPolicy::default()) {
                        Ok((t, s)) => {
                            serde_json::json!({"text":t,"targets":s.iter().map(|r|&t[r.clone()]).collect::<Vec<_>>()})
                        }
                        Err(e) => serde_json::json!({"error":e.reason}),
                    },
                    Ok(_) => panic!(),
                    Err(e) => serde_json::json!({"error":e.to_string()}),
                };
                println!("{r}");
            }
        }
        _ => panic!(),
    }
}
