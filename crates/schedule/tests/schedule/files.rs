//! Schedules as CSV, and errors of bad files.

use std::error::Error;

use crate::common::any_schedule;
use proptest::prelude::*;
use stovepipe_schedule::{Action, Costs, GPipe, OneForwardOneBackward, Rule, Schedule, Scheduler};

fn check(text: &str, expected: &str) {
    let schedule = Schedule::from_csv(text).unwrap();
    assert_eq!(schedule.to_string(), expected, "{text:?}");
}

#[test]
fn each_action_is_in_its_clock_cycle() {
    let schedule = OneForwardOneBackward.schedule(3, 3).unwrap();
    assert_eq!(
        schedule.to_csv(),
        "0F0,0F1,0F2,,,0B0,,0B1,,0B2\n\
         ,1F0,1F1,,1B0,1F2,1B1,,1B2,\n\
         ,,2F0,2B0,2F1,2B1,2F2,2B2,,\n"
    );
    let gpipe = GPipe.schedule(2, 2).unwrap();
    assert_eq!(gpipe.to_csv(), "0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n");
    let halves: Schedule = "0F0 0I0 0W0\n1F0 1I0 1W0".parse().unwrap();
    assert_eq!(halves.to_csv(), "0F0,,,0I0,0W0\n,1F0,1I0,1W0,\n");
}

#[test]
fn blank_cells_are_bubbles() {
    check("0F0,,,0B0\n,1F0,1B0,\n", "0F0 0B0\n1F0 1B0");
    check("0F0, ,\t,0B0\n , 1F0 ,1B0,\n", "0F0 0B0\n1F0 1B0");
}

#[test]
fn quotes_line_ends_and_trailing_lines_do_not_matter() {
    let expected = "0F0 0B0\n1F0 1B0";
    check("\"0F0\",,,\"0B0\"\n\"\",1F0,\"1B0\",\n", expected);
    check("0F0,,,0B0\r\n,1F0,1B0,\r\n", expected);
    check("0F0,,,0B0\n,1F0,1B0,", expected);
    check("0F0,,,0B0\n,1F0,1B0,\n\n\n", expected);
    check("\n0F0,,,0B0\n\n,1F0,1B0,\n", expected);
}

/// What `_dump_csv` of PyTorch 2.15 wrote for a schedule, in both of its formats.
macro_rules! of_pytorch {
    ($($name:literal),+) => {
        [$((
            $name,
            include_str!(concat!("pytorch/", $name, "-compute_only.csv")),
            include_str!(concat!("pytorch/", $name, "-compute_comms.csv")),
        )),+]
    };
}

#[test]
fn files_of_pytorch_are_read() {
    for (name, passes, with_communication) in of_pytorch!(
        "LoopedBFS",
        "Interleaved1F1B",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV"
    ) {
        let schedule = Schedule::from_csv(passes).unwrap();
        let words = passes.replace(")OVERLAP_F_B", "").replace(['(', ';'], ",");
        let line = |line: &str| {
            line.split(',')
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let expected: Vec<_> = words.lines().map(line).collect();
        assert_eq!(schedule.to_string(), expected.join("\n"), "{name}");
        assert_eq!(
            Schedule::from_csv(with_communication).unwrap(),
            schedule,
            "{name}"
        );
        assert_eq!(
            (schedule.stages(), schedule.micro_batches()),
            (4, 4),
            "{name}"
        );
        // Of these, only looped BFS has its backward passes in descending order.
        assert_eq!(schedule.is_ascending(), name != "LoopedBFS", "{name}");
        let costs = Costs::uniform(4, 1.0, 1.0, 1.0);
        assert!(schedule.simulate(&costs).unwrap().makespan() > 0.0);
    }
}

#[test]
fn an_error_names_its_line() {
    let not_an_action =
        "is not an action: write a stage, F, B, I, W or U, and a micro-batch, such as 2F3";
    for (text, expected) in [
        ("0F0\n1X0\n", "line 2: `1X0` …"),
        ("0F0\r\n1F0\r\n?\r\n", "line 3: `?` …"),
        ("0F0\n\n\n1F\n", "line 4: `1F` …"),
        ("0F0,0F1\n\"1\nF0\",1F1\n", "line 2: `1\nF0` …"),
        ("0F0,0B0\n1F0\n", "worker 1 lacks 1B0"),
        ("0F0\r\n\r\n1F0,\r\n1F\r\n", "line 4: `1F` …"),
        ("0F0,(0B0;0X1)OVERLAP_F_B", "line 1: `0X1` …"),
        ("0F0,()OVERLAP_F_B", "line 1: `` …"),
        ("(0F0;0B0)OVERLAP", "line 1: `(0F0;0B0)OVERLAP` …"),
        ("0F0,0F0", "worker 0 has 0F0 twice"),
        ("", "a schedule needs at least one worker"),
        (",,\n", "worker 0 has no action"),
        ("0SEND_F0", "worker 0 has no action"),
        ("0F0,0SEND_F", "line 1: `0SEND_F` …"),
        ("0F0,0UNSHARD0", "line 1: `0UNSHARD0` …"),
        ("0F0,RECV_B0", "line 1: `RECV_B0` …"),
        ("0F0,0WAIT_F0", "line 1: `0WAIT_F0` …"),
    ] {
        let error = Schedule::from_csv(text).unwrap_err();
        let expected = expected.replace('…', not_an_action);
        assert_eq!(error.to_string(), expected, "{text:?}");
        let is_line = error.to_string().starts_with("line");
        assert_eq!(error.source().is_some(), is_line, "{error:?}");
    }
}

/// Reads a text in all ways. Nothing may panic or hang.
fn read(text: &str) {
    let _ = Schedule::from_csv(text);
    let _ = text.parse::<Schedule>();
    let _ = text.parse::<Action>();
    let _ = text.parse::<Rule>();
    let _ = serde_json::from_str::<Schedule>(text);
}

/// Nothing may allocate memory of this size.
#[test]
fn absurd_numbers_are_errors() {
    for number in [99_999_999_999_999, u64::MAX - 1, u64::MAX, 1 << 32] {
        for text in [
            format!("0F{number}"),
            format!("{number}F0"),
            format!("{number}F{number}"),
            format!("0F0 0F{number}"),
            format!("0F0 0B{number}"),
            format!("0F0 0B0 {number}B0"),
            format!("0F0 1F0 2F0 0F1 1F1 2F{number}"),
            format!("0F0\n1F{number}"),
            format!("0F0 0I0 0W0 0W{number}"),
            format!("0F0 0B0 0U{number}"),
        ] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
            let csv = text.replace(' ', ",");
            assert!(Schedule::from_csv(&csv).is_err(), "{text}");
        }
    }
}

/// A file of a megabyte with one wrong number is refused as fast as it is read.
#[test]
fn long_files_with_gaps_are_errors() {
    let stages: String = (0..100_000).map(|stage| format!("{stage}F0\n")).collect();
    assert!(stages.parse::<Schedule>().is_ok());
    for number in [99_999, usize::MAX] {
        let text = format!("{stages}0F{number}");
        assert!(text.parse::<Schedule>().is_err());
    }
    let replicas: String = (0..100_000).map(|i| format!("0F{i}\n")).collect();
    assert!(replicas.parse::<Schedule>().is_ok());
    let row: String = (0..100_000).map(|i| format!("0F{i},")).collect();
    assert!(Schedule::from_csv(&row).is_ok());
    assert!(Schedule::from_csv(&format!("{row}1F0")).is_err());
}

fn letters(letters: &str, most: usize) -> impl Strategy<Value = String> {
    let letters: Vec<char> = letters.chars().collect();
    let characters = prop::collection::vec(prop::sample::select(letters), 0..=most);
    characters.prop_map(|characters| characters.into_iter().collect())
}

/// A change of a text: from where how many characters are replaced, and by what.
fn any_change() -> impl Strategy<Value = (usize, usize, String)> {
    let words = ",|\n|\r\n|\"|0|9|99999999999999|F|0F0|1B2| |I|W|U|é|\0|";
    let words: Vec<_> = words.split('|').collect();
    (0..10_000_usize, 0..4_usize, prop::sample::select(words))
        .prop_map(|(at, length, word)| (at, length, word.to_owned()))
}

fn change(text: &mut String, (at, length, word): &(usize, usize, String)) {
    let mut characters: Vec<char> = text.chars().collect();
    let at = at % (characters.len() + 1);
    let end = (at + length).min(characters.len());
    characters.splice(at..end, word.chars());
    *text = characters.into_iter().collect();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_has_an_answer(text in prop::collection::vec(any::<char>(), 0..100)) {
        read(&text.into_iter().collect::<String>());
    }

    #[test]
    fn any_bytes_have_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text_of_the_right_letters_has_an_answer(text in letters("0129FBIWU, \n\r\"", 60)) {
        read(&text);
    }

    #[test]
    fn any_lists_of_actions_have_an_answer(
        text in letters("00112", 40), passes in letters("FFFBIWU", 40), ends in letters(" ,,\n", 40),
    ) {
        let text: Vec<char> = text.chars().collect();
        let words = text.chunks_exact(2).zip(passes.chars()).zip(ends.chars());
        let words = words.map(|((ends, pass), end)| format!("{}{pass}{}{end}", ends[0], ends[1]));
        read(&words.collect::<String>());
    }

    /// If the result is a schedule, it survives being written and read.
    #[test]
    fn changed_files_have_an_answer(
        schedule in any_schedule(4, 5), changes in prop::collection::vec(any_change(), 0..5),
    ) {
        let json = serde_json::to_string(&schedule).unwrap();
        for mut text in [schedule.to_csv(), schedule.to_string(), json] {
            changes.iter().for_each(|it| change(&mut text, it));
            read(&text);
            for schedule in [Schedule::from_csv(&text), text.parse()].into_iter().flatten() {
                prop_assert_eq!(&Schedule::from_csv(&schedule.to_csv()).unwrap(), &schedule);
                prop_assert_eq!(&schedule.to_string().parse::<Schedule>().unwrap(), &schedule);
            }
        }
    }

    #[test]
    fn actions_survive_being_written(stage: usize, micro_batch: usize, pass in 0..5_usize) {
        let action = Action::new(stage, stovepipe_schedule::Pass::ALL[pass], micro_batch);
        prop_assert_eq!(action.to_string().parse(), Ok(action));
    }
}
