import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { pino } from 'pino';
import { LiveMachine } from '../src/reconcile/live-machine.ts';
import type { LiveMachineOptions } from '../src/reconcile/live-machine.ts';
import { SPEC } from './support/sandbox-spec.ts';

it('a disk that is written as one layer after its sandbox has ended is removed', async () => {
  const flat = { folder: '/nowhere', layers: ['flat-9.qcow2'], bytes: 1 };
  const done: unknown[] = [];
  const log = { close: async () => undefined };
  const live = new LiveMachine({
    assignment: { vm_id: 'x', generation: 1, desired: 'running', spec: SPEC },
    machines: {
      compaction: {
        write: async () => flat,
        replaceBackingChain: async () => done.push('put below'),
        abandon: async (abandoned: unknown) => done.push(abandoned),
      },
    },
    running: { vm: { detach: () => undefined, isStopped: false, waitsForSpace: false } },
    agent: { close: () => undefined },
    logs: { console: log, entrypoint: log },
    log: pino({ enabled: false }),
  } as unknown as LiveMachineOptions);
  const stopped = Promise.withResolvers<void>();
  const tidied = live.compactDisk(async (work) => {
    await stopped.promise;
    await work();
  });
  await live.close();
  stopped.resolve();
  await assert.rejects(tidied, /does not run any more/);
  assert.deepEqual(done, [flat]);
});

it("the clock of a running guest is compared with the host's each time its agent answers a ping", async () => {
  mock.timers.enable({ apis: ['setInterval'] });
  const guest = {
    ping: async () => undefined,
    clockBehind: async () => behind,
    slewClock: async () => undefined,
  };
  let behind = 0;
  const log = { close: async () => undefined };
  const onClockOff = mock.fn();
  const live = new LiveMachine({
    assignment: { vm_id: 'x', generation: 1, desired: 'running', spec: SPEC },
    running: { vm: { detach: () => undefined, isStopped: false, waitsForSpace: false } },
    agent: { close: () => undefined, connected: async () => guest },
    logs: { console: log, entrypoint: log },
    onClockOff,
    log: pino({ enabled: false }),
  } as unknown as LiveMachineOptions);
  try {
    for (const [wrong, calls] of [
      [0, 0],
      [-3_600_000, 1],
      [3_600_000, 2],
    ] as const) {
      behind = wrong;
      mock.timers.tick(60_000);
      await new Promise(setImmediate);
      assert.equal(onClockOff.mock.callCount(), calls);
    }
  } finally {
    await live.close();
    mock.timers.reset();
  }
});
