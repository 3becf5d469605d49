/** Guests that are stopped while they serve nothing, as instances of functions are. */
import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { newUuid } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { SPEC } from './support/sandbox-spec.ts';
import { assertClock, TestRunner } from './support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const IDLE = '31111111-2222-4333-8444-555555555555';
const PERSISTENT = '31111111-2222-4333-8444-666666666666';
/** Processor time of this process in which the VMM of a stopped guest may use a tenth. */
const PASSED_MICROS = 300_000;
const EPHEMERAL = { ...SPEC, persistent: false };
let runner: TestRunner;

before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-if-'));
  runner.spec = EPHEMERAL;
  runner.want(IDLE, 1, 'running');
  await runner.reported(1, 'running', { of: IDLE });
  await runner.sh(IDLE, 'while :; do i=$((i+1)); echo $i > /dev/shm/n; done > /dev/null 2>&1 &');
});
after(async () => await runner.dispose());

const idle = () => {
  const sandbox = runner.reconciler.get(IDLE);
  assert.ok(sandbox);
  return sandbox;
};
const counted = async (): Promise<number> => Number(await runner.sh(IDLE, 'cat /dev/shm/n'));
const used = (): number => runner.meter.cpu(IDLE)?.cpuMicros ?? Number.NaN;

async function assertUses(): Promise<void> {
  const before = used();
  await eventually('a guest that runs uses processor time', async () =>
    used() - before > PASSED_MICROS ? true : undefined,
  );
}

async function assertStopped(): Promise<void> {
  const before = used();
  const start = process.cpuUsage();
  while (process.cpuUsage(start).user + process.cpuUsage(start).system < PASSED_MICROS)
    await new Promise((resolve) => setImmediate(resolve));
  const grown = used() - before;
  assert.ok(grown < PASSED_MICROS / 10, `a stopped guest has used ${grown} µs`);
}

async function assertRuns(): Promise<void> {
  const first = await counted();
  await eventually('the loop in the guest goes on', async () =>
    (await counted()) > first ? true : undefined,
  );
  await assertClock(() => runner.sh(IDLE, 'date +%s'));
}

it('a frozen guest computes nothing, and has the right time when it is thawed', async () => {
  const turn = newUuid();
  await idle().thaw(turn);
  await assertRuns();
  await assertUses();
  await idle().freeze(turn);
  await idle().freeze(turn);
  assert.equal(idle().live?.isFrozen, true);
  await assertStopped();
  // A step of the host's clock must not wait for its agent.
  idle().setClock();
  await idle().thaw(newUuid());
  await idle().thaw(newUuid());
  assert.equal(idle().live?.isFrozen, false);
  await assertRuns();
});

it('a freeze of an earlier turn stops nobody', async () => {
  const [earlier, later] = [newUuid(), newUuid()];
  await idle().thaw(earlier);
  await idle().thaw(later);
  await assert.rejects(idle().freeze(earlier), { status: 409, message: /thawed since/ });
  assert.equal(idle().live?.isFrozen, false);
});

it('the next runner leaves a frozen guest stopped until it is thawed', async () => {
  const turn = newUuid();
  await idle().thaw(turn);
  await idle().freeze(turn);
  const { home } = runner;
  await runner.detach();
  runner = await TestRunner.open(home);
  runner.spec = EPHEMERAL;
  assert.equal(idle().observation.status, 'running');
  assert.equal(idle().live?.isFrozen, true);
  await assertStopped();
  // The gateway repeats what it got no answer to.
  await idle().freeze(turn);
  await idle().thaw(newUuid());
  await assertRuns();
  const { home: again } = runner;
  await runner.detach();
  runner = await TestRunner.open(again);
  runner.spec = EPHEMERAL;
  assert.equal(idle().live?.isFrozen, false);
});

it('operations that need the guest thaw it, and a frozen one is deleted', async () => {
  const turn = newUuid();
  await idle().thaw(turn);
  await idle().freeze(turn);
  const live = idle().live;
  await using origin = await live?.fork(newUuid());
  assert.ok(origin);
  assert.equal(live?.isFrozen, false);
  await origin.copied;
  await idle().freeze(turn);
  runner.want(IDLE, 2, 'deleted');
  await runner.reported(2, 'deleted', { of: IDLE });
  await assert.rejects(idle().thaw(turn), { status: 409 });
});

it('a frozen sandbox with a persistent disk is paused, resumed and stopped', async () => {
  runner.spec = SPEC;
  runner.want(PERSISTENT, 1, 'running');
  await runner.reported(1, 'running', { of: PERSISTENT });
  const freeze = () => runner.reconciler.get(PERSISTENT)?.freeze(newUuid());
  await freeze();
  runner.want(PERSISTENT, 2, 'paused');
  await runner.reported(2, 'paused', { of: PERSISTENT });
  runner.want(PERSISTENT, 3, 'running', { start_from: 'memory' });
  await runner.reported(3, 'running', { of: PERSISTENT });
  assert.equal(await runner.sh(PERSISTENT, 'echo $GREETING'), 'hello\n');
  await freeze();
  runner.want(PERSISTENT, 4, 'stopped');
  await runner.reported(4, 'stopped', { of: PERSISTENT });
});
