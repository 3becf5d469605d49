import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, before, describe, it, mock } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { encodeFrame, FrameType } from '../src/guest/frames.ts';
import type { GuestProcess } from '../src/guest/index.ts';
import { FrameWriter } from '../src/guest/frame-writer.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { TestRunner } from './support/sandboxes.ts';
import { SPEC } from './support/sandbox-spec.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const id = (n: number): string => `31111111-2222-4333-8444-${String(n).padStart(12, '0')}`;
const SOURCE = id(1);
/** Not a power of two: pieces of it end anywhere in the frames and buffers on their way. */
const PIECE = Buffer.alloc(60_011, 'input ');

let runner: TestRunner;
before(async () => {
  runner = await TestRunner.open(await temporaryFolder('releap-in-'));
  runner.spec = { ...SPEC, vcpus: 1, ports: [] };
  runner.want(SOURCE, 1, 'running');
  await runner.reported(1, 'running', { of: SOURCE });
});
after(async () => await runner.dispose());

/** Feeds a command all that it takes, until it is told to end. */
function feed(child: GuestProcess): { end: () => string; fed: () => number } {
  const hash = createHash('sha256');
  let pieces = 0;
  const ended = new AbortController();
  child.exit.catch(() => undefined);
  child.stdin.on('error', () => undefined);
  const write = (): void => {
    for (let more = true; more && !ended.signal.aborted && !child.stdin.destroyed; ) {
      hash.update(PIECE);
      pieces += 1;
      more = child.stdin.write(PIECE);
    }
    if (!ended.signal.aborted) child.stdin.once('drain', write);
  };
  write();
  const end = (): string => {
    ended.abort();
    child.stdin.end();
    return hash.digest('hex');
  };
  return { end, fed: () => pieces };
}

async function fedCommand(shell: string): Promise<{ child: GuestProcess; fed: ReturnType<typeof feed> }> {
  const live = runner.reconciler.get(SOURCE)?.live;
  assert.ok(live);
  const child = (await live.guest()).exec({ shell, stdin: true });
  const fed = feed(child);
  // Far more than what fits into all buffers on the way.
  while (fed.fed() < 100) await new Promise((resolve) => setTimeout(resolve, 5));
  return { child, fed };
}

describe('a sandbox that is captured while a client writes to it', () => {
  it('is forked and snapshotted: the input arrives whole, and the copies hear their new host', async () => {
    const { child, fed } = await fedCommand('sha256sum');
    let said = '';
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString();
    });
    runner.want(id(2), 1, 'running', {
      start_from: 'memory',
      spec: { ...runner.spec, name: 'fork', origin: { type: 'fork', vm_id: SOURCE } },
    });
    await runner.reported(1, 'running', { of: id(2) });
    const snapshot = {
      snapshot_id: id(3),
      generation: 1,
      desired: 'ready',
      vm_id: SOURCE,
      kind: 'full',
    } as const;
    const { status, error } = await runner.snapshot(snapshot);
    assert.equal(status, 'ready', error);
    const expected = fed.end();
    assert.equal((await child.exit).exitCode, 0);
    assert.equal(said.split(' ')[0], expected);

    runner.want(id(4), 1, 'running', {
      start_from: 'memory',
      spec: { ...runner.spec, name: 'again', origin: { type: 'snapshot', snapshot_id: id(3), kind: 'full' } },
    });
    await runner.reported(1, 'running', { of: id(4) });
    for (const vmId of [id(2), id(4)]) assert.equal(await runner.sh(vmId, 'echo here'), 'here\n');
  });

  it('is paused and resumed repeatedly', async () => {
    for (const round of [1, 2, 3]) {
      const { fed } = await fedCommand('cat > /dev/null');
      runner.want(SOURCE, 2 * round, 'paused');
      await runner.reported(2 * round, 'paused', { of: SOURCE });
      fed.end();
      runner.want(SOURCE, 2 * round + 1, 'running', { start_from: 'memory' });
      await runner.reported(2 * round + 1, 'running', { of: SOURCE });
      assert.equal(await runner.sh(SOURCE, 'echo here'), 'here\n');
    }
  });

  it('that was captured with half of a message in it continues all the same', async () => {
    const message = encodeFrame(FrameType.data, 1, Buffer.alloc(30_000));
    mock.method(FrameWriter.prototype, 'hold', function (this: FrameWriter) {
      this.send(message.subarray(0, 1_000));
    });
    runner.want(SOURCE, 8, 'paused');
    await runner.reported(8, 'paused', { of: SOURCE });
    mock.restoreAll();
    runner.want(SOURCE, 9, 'running', { start_from: 'memory' });
    await runner.reported(9, 'running', { of: SOURCE });
    assert.equal(await runner.sh(SOURCE, 'echo here'), 'here\n');
  });
});
