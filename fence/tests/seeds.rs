//! The kept inputs of the fuzz targets (`tools/fuzz/cargo`), run without a fuzzer: what was found stays mended.

#[path = "../../tools/fuzz/cargo/src/arguments.rs"]
mod arguments;
#[path = "../../tools/fuzz/cargo/src/awaits.rs"]
mod awaits;
#[path = "../../tools/fuzz/cargo/src/codec.rs"]
mod codec;
#[path = "../../tools/fuzz/cargo/src/input.rs"]
mod input;
#[path = "../../tools/fuzz/cargo/src/lease.rs"]
mod lease;
#[path = "../../tools/fuzz/cargo/src/queue.rs"]
mod queue;
#[path = "../../tools/fuzz/cargo/src/wheel.rs"]
mod wheel;

fn run_all(target: &str, run: fn(&[u8])) {
    let folder = format!("{}/../tools/fuzz/cargo/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // A failure shows the last name.
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs >= 10, "{inputs} inputs");
}

#[test]
fn arguments_agree_with_a_second_reading() {
    run_all("arguments", arguments::run);
}

#[test]
fn the_awaits_agree_with_a_plain_list() {
    run_all("awaits", awaits::run);
}

#[test]
fn the_codec_reads_back_what_it_wrote() {
    run_all("codec", codec::run);
}

#[test]
fn the_lease_machine_agrees_with_a_plain_account() {
    run_all("lease", lease::run);
}

#[test]
fn the_queues_agree_with_plain_lists() {
    run_all("queue", queue::run);
}

#[test]
fn the_wheel_agrees_with_a_sorted_map() {
    run_all("wheel", wheel::run);
}
