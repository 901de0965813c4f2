//! What the life of a call costs on top of its sandbox: `echo` through the whole of it (validate, policy,
//! sandbox, bound, record), beside the bare sandbox in the same run; and `echo` as a plain function, bare.
//!
//! `cargo bench -p agentloop-tests --bench pipeline`
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use agentloop_host::{
    agent::{Deps, run_calls},
    capability::{Grants, OperatorLimits},
    ids::{PluginName, ToolName},
    policy::Authorized,
    registry::{Plugin, Registry},
    sandbox::{Component, Executor, GuestCall, Sandbox},
    tool::ToolOutcome,
    transcript::{ContentBlock, ToolUse},
};
use agentloop_tests::guests::{self, Heard};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::future::join_all;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

const TEXT: &str = "hello";
/// Workers of the runtime that many single calls come from.
const THREADS: usize = 2;
/// Calls whose percentiles are told.
const TIMED_CALLS: usize = 50_000;
/// Callers that make one call after another, all at once.
const CALLERS: usize = 8;

/// The same tool, as the sandbox and as the agent see it.
#[derive(Clone)]
struct Echo(Arc<Parts>);

struct Parts {
    sandbox: Sandbox,
    component: Component,
    tool: ToolName,
    plugin: PluginName,
    heard: Arc<Heard>,
    registry: Registry,
    deps: Deps,
}

impl Echo {
    async fn load(wasm: &[u8]) -> Self {
        let sandbox = guests::sandbox();
        let component = sandbox.load(wasm.into()).await.unwrap();
        let plugin = PluginName::parse("echo").unwrap();
        let plugins = [Plugin {
            name: plugin.clone(),
            file: "echo.wasm".to_owned(),
            component: component.clone(),
            grants: Grants::default(),
            limits: OperatorLimits::default(),
        }];
        let registry = Registry::with_plugins([], plugins, Some(&sandbox), Vec::new()).unwrap();
        Self(Arc::new(Parts {
            sandbox,
            component,
            tool: ToolName::parse("echo").unwrap(),
            plugin,
            heard: Arc::default(),
            registry,
            deps: Deps::default(),
        }))
    }

    async fn bare(&self, authorized: Authorized, executor: Executor) {
        let echo = &*self.0;
        let tool = echo.registry.get("echo").unwrap();
        let call = GuestCall {
            component: &echo.component,
            tool: &echo.tool,
            plugin: &echo.plugin,
            reach: tool.reach.as_ref().unwrap(),
            limits: &tool.limits,
        };
        let slot = echo.sandbox.slot().await;
        let heard = echo.heard.clone();
        let ending = echo
            .sandbox
            .call(slot, call, authorized, executor, heard)
            .await;
        assert!(matches!(ending.outcome, ToolOutcome::Answered(_)));
    }

    async fn pipeline(&self, calls: &[ContentBlock]) {
        let records = run_calls(calls, &self.0.registry, &self.0.deps).await;
        assert_eq!(records.len(), calls.len());
        assert!(
            records
                .iter()
                .all(|record| matches!(record.outcome, ToolOutcome::Answered(_)))
        );
    }
}

fn authorized() -> Authorized {
    guests::authorized("echo", json!({ "text": TEXT }))
}

fn calls(count: usize) -> Vec<ContentBlock> {
    (0..count)
        .map(|n| {
            let id = format!("call-{n}");
            ToolUse::new(&id, "echo", json!({ "text": TEXT }))
                .unwrap()
                .into()
        })
        .collect()
}

/// The time that `count` calls take, made one after another by each of [`CALLERS`] callers.
async fn in_parallel<F>(count: u64, call: impl Fn() -> F + Clone + Send + 'static) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let each = count.div_ceil(CALLERS as u64);
    let start = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    call().await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    // What was made beyond `count` is not counted as time.
    start
        .elapsed()
        .mul_f64(count as f64 / (each * CALLERS as u64) as f64)
}

/// Criterion tells no percentiles.
fn percentiles(runtime: &Runtime, echo: &Echo) {
    let one = calls(1);
    let mut took: Vec<Duration> = runtime.block_on(async {
        let mut took = Vec::with_capacity(TIMED_CALLS);
        for _ in 0..TIMED_CALLS {
            let start = Instant::now();
            echo.pipeline(&one).await;
            took.push(start.elapsed());
        }
        took
    });
    took.sort();
    let [median, p99] = [50, 99].map(|p| took[TIMED_CALLS * p / 100].as_secs_f64() * 1e6);
    println!("one_call/pipeline       median {median:.1} µs, p99 {p99:.1} µs\n");
}

fn one_call(c: &mut Criterion, runtime: &Runtime, echo: &Echo, plain: &Echo) {
    let mut group = c.benchmark_group("one_call");
    group.bench_function("bare", |b| {
        b.to_async(runtime).iter_batched(
            authorized,
            |authorized| echo.bare(authorized, Executor::CallerFirst),
            BatchSize::SmallInput,
        );
    });
    // A component that knows nothing of this host: at most twice as much.
    group.bench_function("bare_plain", |b| {
        b.to_async(runtime).iter_batched(
            authorized,
            |authorized| plain.bare(authorized, Executor::CallerFirst),
            BatchSize::SmallInput,
        );
    });
    let one = calls(1);
    group.bench_function("pipeline", |b| {
        b.to_async(runtime).iter(|| echo.pipeline(&one));
    });
    group.finish();
}

fn batch_of_8(c: &mut Criterion, runtime: &Runtime, echo: &Echo) {
    let mut group = c.benchmark_group("batch_of_8");
    group.throughput(Throughput::Elements(8));
    group.bench_function("bare", |b| {
        b.to_async(runtime).iter_batched(
            || [(); 8].map(|()| authorized()),
            |all| async move {
                join_all(all.map(|one| echo.bare(one, Executor::Guests))).await;
            },
            BatchSize::SmallInput,
        );
    });
    let eight = calls(8);
    group.bench_function("pipeline", |b| {
        b.to_async(runtime).iter(|| echo.pipeline(&eight));
    });
    group.finish();
}

fn two_threads(c: &mut Criterion, runtime: &Runtime, echo: &Echo) {
    let mut group = c.benchmark_group("two_threads");
    group.throughput(Throughput::Elements(1));
    group.bench_function("bare", |b| {
        b.to_async(runtime).iter_custom(|count| {
            let echo = echo.clone();
            in_parallel(count, move || {
                let echo = echo.clone();
                async move { echo.bare(authorized(), Executor::CallerFirst).await }
            })
        });
    });
    let one: Arc<[ContentBlock]> = calls(1).into();
    group.bench_function("pipeline", |b| {
        b.to_async(runtime).iter_custom(|count| {
            let (echo, one) = (echo.clone(), one.clone());
            in_parallel(count, move || {
                let (echo, one) = (echo.clone(), one.clone());
                async move { echo.pipeline(&one).await }
            })
        });
    });
    group.finish();
}

fn benches(c: &mut Criterion) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let echo = runtime.block_on(Echo::load(guests::ECHO));
    let plain = runtime.block_on(Echo::load(guests::PLAIN));
    percentiles(&runtime, &echo);
    one_call(c, &runtime, &echo, &plain);
    batch_of_8(c, &runtime, &echo);
    two_threads(c, &runtime, &echo);
}

criterion_group!(pipeline, benches);
criterion_main!(pipeline);
