import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import type { UsageHistoryMessage, UsagePiece } from '@releap/contract/runner';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';
import { pino } from 'pino';
import type { Reading } from '../src/metering/counters.ts';
import { readInterfaces, type CounterSource } from '../src/metering/counter-reader.ts';
import { OBSERVED_MAX_MS, UsageLedger } from '../src/metering/usage-ledger.ts';
import { UsageMeter } from '../src/metering/usage-meter.ts';
import type { CpuCounter } from '../src/metering/usage-reporter.ts';
import { UsageUplink } from '../src/metering/usage-uplink.ts';

const log = pino({ enabled: false });
const SOURCE: CounterSource = {
  cgroup: 'vm-a',
  process: { pid: 1, startTicks: '1', bootId: 'boot' },
  jail: '/nowhere',
  networkInterface: 'veth0',
};
const START = 1_800_000_000_000;
/** A minute that begins at `START`. */
const MINUTE = START / 60_000;

const reading = (values: Partial<Reading>): Reading => ({
  life: 'first',
  atMs: START,
  uptimeMs: 0,
  memoryKib: 1024,
  diskBytes: 4096,
  cpuMicros: 0,
  diskReadBytes: 0,
  diskWriteBytes: 0,
  netRxBytes: 0,
  netTxBytes: 0,
  ...values,
});

describe('the ledger of use', () => {
  it('spreads what was used between two readings over the minutes, without the use before the first one', () => {
    const ledger = new UsageLedger();
    ledger.add('a', reading({ atMs: START + 50_000, uptimeMs: 1_000, cpuMicros: 7_000_000 }));
    ledger.add('a', reading({ atMs: START + 70_000, uptimeMs: 21_000, cpuMicros: 17_000_001, diskBytes: 9 }));
    assert.deepEqual(
      ledger.state.open.map(({ minute, durationMs, cpuMicros, memoryKibMs, diskPeakBytes }) => [
        minute - MINUTE,
        durationMs,
        cpuMicros,
        memoryKibMs,
        diskPeakBytes,
      ]),
      [
        [0, 10_000, 5_000_000, 10_240_000, 4096],
        [1, 10_000, 5_000_001, 10_240_000, 4096],
      ],
    );
    assert.deepEqual(
      ledger.take().map((bucket) => bucket.minute - MINUTE),
      [0],
      'the present minute is not complete',
    );
    ledger.end('a');
    assert.equal(ledger.take().length, 1);
    assert.deepEqual(ledger.state, { marks: [], open: [] });
  });

  it('leaves a gap where nothing was observed, and never a negative or doubled value', () => {
    const ledger = new UsageLedger();
    const total = (): number => ledger.state.open.reduce((sum, one) => sum + one.cpuMicros, 0);
    ledger.add('a', reading({}));
    const late = OBSERVED_MAX_MS + 1;
    ledger.add('a', reading({ atMs: START + late, uptimeMs: late, cpuMicros: 5_000_000 }));
    assert.deepEqual(ledger.state.open, [], 'too long without a reading');
    // The same reading again, one of before, and a counter that was reset.
    ledger.add('a', reading({ atMs: START + late, uptimeMs: late, cpuMicros: 5_000_000 }));
    ledger.add('a', reading({ cpuMicros: 1 }));
    assert.equal(total(), 0);
    ledger.add('a', reading({ atMs: START + late + 1_000, uptimeMs: late + 1_000, cpuMicros: 300 }));
    assert.equal(total(), 300);
    // Another VMM: a resume or a restart.
    ledger.add(
      'a',
      reading({ life: 'next', atMs: START + late + 2_000, uptimeMs: late + 2_000, cpuMicros: 9e9 }),
    );
    assert.equal(total(), 300);
  });

  it('measures time on the monotonic clock when the time of day is set', () => {
    const ledger = new UsageLedger();
    ledger.add('a', reading({ atMs: START + 3_600_000, uptimeMs: 10_000 }));
    ledger.add('a', reading({ atMs: START, uptimeMs: 20_000, cpuMicros: 1_000 }));
    assert.deepEqual(
      ledger.state.open.map(({ minute, durationMs, cpuMicros }) => [minute - MINUTE, durationMs, cpuMicros]),
      [[-1, 10_000, 1_000]],
    );
  });
});

it('reads the interfaces of the host from one file', () => {
  const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 70874691222 10829993    0    0    0     0          0         0 70874691223 10829993    0    0    0     0       0          0
rl1v7:12 1 0 0 0 0 0 0 34 1 0 0 0 0 0 0
`;
  assert.deepEqual(
    [...readInterfaces(text)],
    [
      ['lo', { rx: 70874691222, tx: 70874691223 }],
      ['rl1v7', { rx: 12, tx: 34 }],
    ],
  );
});

/** Leaves what a runner leaves that is killed when its messages are written and its state is not. */
function crashInCommit(folder: string, meter: UsageMeter): void {
  const files = readdirSync(folder).filter((name) => !name.endsWith('.message'));
  const before = files.map((name) => readFileSync(join(folder, name)));
  meter.commit();
  for (const name of readdirSync(folder)) if (!name.endsWith('.message')) rmSync(join(folder, name));
  files.forEach((name, at) => writeFileSync(join(folder, name), before[at] ?? ''));
}

/** What happens to a machine with two sandboxes, in steps. */
type Step =
  | { kind: 'run'; ms: number; cpu: number; bytes: number }
  | { kind: 'start' | 'end'; vm: number }
  | {
      kind:
        | 'pass'
        | 'commit'
        | 'crash'
        | 'crash-in-commit'
        | 'restart'
        | 'deliver'
        | 'deliver-without-answer'
        | 'relink';
    };

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    {
      weight: 6,
      arbitrary: fc.record({
        kind: fc.constant('run' as const),
        ms: fc.integer({ min: 1, max: 55_000 }),
        cpu: fc.integer({ min: 0, max: 9_999_999 }),
        bytes: fc.integer({ min: 0, max: 1e9 }),
      }),
    },
    {
      weight: 3,
      arbitrary: fc.record({ kind: fc.constantFrom('start' as const, 'end' as const), vm: fc.nat(1) }),
    },
    {
      weight: 8,
      arbitrary: fc
        .constantFrom(
          ...([
            'pass',
            'commit',
            'crash',
            'crash-in-commit',
            'restart',
            'deliver',
            'deliver-without-answer',
            'relink',
          ] as const),
        )
        .map((kind) => ({ kind })),
    },
  ),
  { minLength: 1, maxLength: 80 },
);

it('neither loses nor doubles what was used, whenever the runner dies and whatever answer is lost', async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (happens) => {
      const folder = mkdtempSync(join(tmpdir(), 'usage-'));
      try {
        await compareWithModel(folder, happens);
      } finally {
        rmSync(folder, { recursive: true });
      }
    }),
    { numRuns: propertyRuns(1_000) },
  );
});

async function compareWithModel(folder: string, happens: readonly Step[]): Promise<void> {
  let uptimeMs = 0;
  let unreadMs = 0;
  const machines = new Map<string, Reading>();
  const expected = { cpu: 0, bytes: 0, ms: 0, kibMs: 0 };
  let lives = 0;
  /** What control has stored, by its key. */
  const stored = new Map<string, UsagePiece>();
  let sent: UsageHistoryMessage | undefined;
  let meter: UsageMeter;
  let uplink: UsageUplink;
  const open = (): void => {
    meter = new UsageMeter({
      folder,
      reader: { read: ({ cgroup }) => structuredClone(machines.get(cgroup)), cpu: () => undefined },
      interfaces: () => new Map(),
      now: () => START + uptimeMs,
      log,
    });
    sent = undefined;
    uplink = new UsageUplink({ spool: meter.spool, send: (message) => (sent = message), now: () => 0 });
    uplink.linked(true);
    unreadMs = 0;
  };
  const deliver = (answers: boolean): boolean => {
    uplink.pump();
    const message = structuredClone(sent);
    if (message === undefined) return false;
    for (const piece of message.pieces) {
      const key = `${piece.vm_id} ${piece.minute} ${message.seq}`;
      const before = stored.get(key);
      if (before !== undefined) assert.deepEqual(piece, before, 'a number is never used for other content');
      stored.set(key, piece);
    }
    sent = undefined;
    if (answers) uplink.stored(message.seq);
    return true;
  };
  const advance = (ms: number, cpu: number, bytes: number): void => {
    uptimeMs += ms;
    for (const [vm, at] of machines) {
      machines.set(vm, {
        ...at,
        atMs: START + uptimeMs,
        uptimeMs,
        cpuMicros: at.cpuMicros + cpu,
        netTxBytes: at.netTxBytes + bytes,
      });
      expected.cpu += cpu;
      expected.bytes += bytes;
      expected.ms += ms;
      expected.kibMs += ms * at.memoryKib;
    }
  };

  open();
  for (const step of happens) {
    switch (step.kind) {
      case 'run':
        // Gaps have a test of their own.
        if (unreadMs + step.ms > OBSERVED_MAX_MS) {
          await meter!.pass();
          unreadMs = 0;
        }
        unreadMs += step.ms;
        advance(step.ms, step.cpu, step.bytes);
        break;
      case 'start': {
        const vm = `vm-${step.vm}`;
        if (machines.has(vm)) break;
        const life = `life ${++lives}`;
        machines.set(
          vm,
          reading({ life, atMs: START + uptimeMs, uptimeMs, cpuMicros: 123, netTxBytes: 456 }),
        );
        meter!.begin(vm, { ...SOURCE, cgroup: vm });
        break;
      }
      case 'end':
        meter!.end(`vm-${step.vm}`);
        machines.delete(`vm-${step.vm}`);
        break;
      case 'pass':
        await meter!.pass();
        unreadMs = 0;
        break;
      case 'commit':
        meter!.commit();
        break;
      case 'crash':
        open();
        break;
      case 'crash-in-commit':
        crashInCommit(folder, meter!);
        open();
        break;
      case 'restart':
        await meter!.close();
        open();
        break;
      case 'relink':
        sent = undefined;
        uplink!.linked(true);
        break;
      default:
        deliver(step.kind === 'deliver');
    }
  }
  for (const vm of machines.keys()) meter!.end(vm);
  meter!.commit();
  uplink!.linked(true);
  while (deliver(true));
  assert.equal(meter!.spool.next(), undefined);
  const pieces = [...stored.values()];
  const sum = (name: keyof Omit<UsagePiece, 'vm_id'>): number =>
    pieces.reduce((total, piece) => total + piece[name], 0);
  assert.deepEqual(
    {
      cpu: sum('cpu_usec'),
      bytes: sum('net_tx_bytes'),
      ms: sum('duration_ms'),
      kibMs: sum('memory_kib_ms'),
    },
    expected,
  );
  const minutes = Map.groupBy(pieces, ({ vm_id, minute }) => `${vm_id} ${minute}`);
  for (const [, parts] of minutes) {
    assert.ok(parts.reduce((total, part) => total + part.duration_ms, 0) <= 60_000);
    for (const part of parts)
      for (const value of Object.values(part)) assert.ok(typeof value !== 'number' || value >= 0);
  }
}

it('a message whose state was not written is never sent: its content is written again', () => {
  const folder = mkdtempSync(join(tmpdir(), 'usage-'));
  try {
    let at = reading({});
    const open = (): UsageMeter =>
      new UsageMeter({
        folder,
        reader: { read: () => at, cpu: () => undefined },
        interfaces: () => new Map(),
        log,
      });
    const first = open();
    first.begin('a', SOURCE);
    at = reading({ atMs: START + 61_000, uptimeMs: 61_000, cpuMicros: 5 });
    first.sample('a');
    crashInCommit(folder, first);
    assert.ok(readdirSync(folder).some((name) => name.endsWith('.message')));
    const second = open();
    assert.equal(second.spool.next(), undefined);
    second.commit();
    assert.deepEqual(
      second.spool.next()?.pieces.map((piece) => piece.duration_ms),
      [60_000],
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('records the last use of a micro-VM that ended while no runner ran, and of no other', () => {
  const folder = mkdtempSync(join(tmpdir(), 'usage-'));
  try {
    let at: Reading | undefined = reading({});
    const open = (): UsageMeter =>
      new UsageMeter({
        folder,
        reader: { read: () => at, cpu: () => undefined },
        interfaces: () => new Map(),
        log,
      });
    const first = open();
    for (const vm of ['ended', 'lives']) first.begin(vm, SOURCE);
    at = reading({ atMs: START + 1_000, uptimeMs: 1_000, cpuMicros: 5 });
    const second = open();
    second.retain((vm) => vm === 'lives');
    second.commit();
    assert.deepEqual(
      second.spool.next()?.pieces.map((piece) => [piece.vm_id, piece.cpu_usec]),
      [['ended', 5]],
    );
    assert.equal(second.usageOf('ended'), undefined);
    // The host was booted again: the control group is gone, and what was read before is recorded.
    at = undefined;
    const third = open();
    third.retain(() => false);
    third.commit();
    third.spool.stored(second.spool.next()?.seq ?? 0);
    assert.deepEqual(
      third.spool.next()?.pieces.map((piece) => [piece.vm_id, piece.cpu_usec]),
      [['lives', 5]],
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('discards what control does not want, and keeps it while control has not said so', () => {
  const folder = mkdtempSync(join(tmpdir(), 'usage-'));
  try {
    let at = reading({});
    const meter = new UsageMeter({
      folder,
      reader: { read: () => at, cpu: () => undefined },
      interfaces: () => new Map(),
      log,
    });
    const sent: UsageHistoryMessage[] = [];
    const uplink = new UsageUplink({ spool: meter.spool, send: (message) => sent.push(message) });
    meter.begin('a', SOURCE);
    at = reading({ atMs: START + 1_000, uptimeMs: 1_000, cpuMicros: 5 });
    assert.equal(meter.usageOf('a')?.cpu_core_s, 0.000005);
    assert.equal(meter.usageOf('b'), undefined);
    meter.end('a');
    meter.commit();
    uplink.pump();
    assert.ok(meter.spool.next() !== undefined);
    uplink.linked(false);
    assert.equal(meter.spool.next(), undefined);
    assert.deepEqual(sent, []);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

it('tells the CPU time of a sandbox when its run begins and before it ends, once each', () => {
  const folder = mkdtempSync(join(tmpdir(), 'usage-'));
  try {
    let counter: CpuCounter | undefined = { incarnation: 'first', cpuMicros: 5, ageMicros: 30 };
    const told: [string, CpuCounter][] = [];
    const meter = new UsageMeter({
      folder,
      reader: {
        read: () => reading({}),
        cpu() {
          if (counter === undefined) throw new Error('EIO');
          return counter;
        },
      },
      interfaces: () => new Map(),
      log,
    });
    meter.listen({ onPass: () => undefined, onEdge: (vmId, read) => told.push([vmId, read]) });
    const begun = counter;
    meter.begin('a', SOURCE);
    const ended = { ...begun, cpuMicros: 9, ageMicros: 34 };
    counter = ended;
    meter.end('a');
    meter.end('a');
    meter.begin('b', SOURCE);
    counter = undefined;
    meter.end('b');
    assert.deepEqual(told, [
      ['a', begun],
      ['a', ended],
      ['b', ended],
    ]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
