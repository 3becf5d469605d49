import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it, mock } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { EnospcMonitor } from '../src/vmm/qemu/enospc-monitor.ts';
import type { QmpClient, QmpEvent } from '../src/vmm/qemu/qmp.ts';
import { log } from './support/machines.ts';

/** A VMM whose guest is paused (ENOSPC) whenever it has no space. */
class ScriptedVmm {
  status = 'running';
  hasRoom = true;
  continued = 0;
  readonly #listeners: ((event: QmpEvent) => void)[] = [];

  readonly qmp = {
    onEvent: (listener: (event: QmpEvent) => void) => this.#listeners.push(listener),
    onClose: () => undefined,
    execute: async (command: string): Promise<unknown> => {
      await turn();
      if (command === 'query-status') return { status: this.status };
      if (command === 'stop') {
        this.status = 'paused';
        return {};
      }
      assert.equal(command, 'cont');
      this.continued += 1;
      this.status = this.hasRoom ? 'running' : 'io-error';
      return {};
    },
  } as unknown as QmpClient;

  write(action: 'stop' | 'report' = 'stop'): void {
    if (this.hasRoom) return;
    if (action === 'stop') this.status = 'io-error';
    for (const listener of this.#listeners) listener({ event: 'BLOCK_IO_ERROR', data: { action } });
  }
}

function ignore(): void {}

async function seconds(count: number): Promise<void> {
  for (let second = 0; second < count; second += 1) {
    mock.timers.tick(1_000);
    for (let at = 0; at < 4; at += 1) await turn();
  }
}

describe('a guest on a host whose disk is full', () => {
  let vmm: ScriptedVmm;
  let disk: EnospcMonitor;
  let told: string[];
  let wentOn: number;
  beforeEach(() => {
    mock.timers.enable({ apis: ['setInterval'] });
    vmm = new ScriptedVmm();
    told = [];
    wentOn = 0;
    disk = new EnospcMonitor(
      vmm.qmp,
      log,
      (line) => told.push(line),
      () => (wentOn += 1),
    );
  });
  afterEach(() => mock.timers.reset());

  it('is resumed until there is space, and its owner is notified when it is blocked on ENOSPC and when it resumes', async () => {
    vmm.hasRoom = false;
    vmm.write();
    vmm.write();
    await seconds(3);
    assert.equal(vmm.continued, 3);
    assert.equal(disk.waits, true);
    assert.deepEqual(told, ["the host's disk is full: the sandbox is paused until there is space"]);
    assert.equal(wentOn, 0);
    vmm.hasRoom = true;
    await seconds(5);
    assert.equal(vmm.continued, 4);
    assert.equal(disk.waits, false);
    assert.deepEqual(told.slice(1), ["the host's disk has space again: the sandbox continues"]);
    assert.equal(wentOn, 1);

    vmm.hasRoom = false;
    vmm.write();
    await seconds(1);
    assert.equal(vmm.continued, 5);
    assert.equal(told.length, 3);
  });

  it('is paused before that disk is full, and resumed when there is space again', async () => {
    let isShort = true;
    await disk.pause(() => isShort);
    await disk.pause(() => isShort);
    assert.equal(vmm.status, 'paused');
    assert.equal(await disk.look(), true);
    await seconds(2);
    assert.equal(vmm.status, 'paused');
    // Another owner had stopped it, and let it continue.
    vmm.status = 'running';
    await seconds(1);
    assert.equal(vmm.status, 'paused');
    isShort = false;
    await seconds(2);
    assert.deepEqual({ status: vmm.status, waits: disk.waits }, { status: 'running', waits: false });
    assert.equal(await disk.look(), false);
    assert.equal(wentOn, 1);
  });

  it('that is stopped by another owner stays stopped, however short of space the disk is', async () => {
    disk.hold(true);
    vmm.status = 'paused';
    await disk.pause(() => true);
    await seconds(1);
    assert.deepEqual({ continued: vmm.continued, waits: disk.waits }, { continued: 0, waits: false });
  });

  it('is not resumed while another owner holds it, also when that starts in the middle of a try', async () => {
    vmm.hasRoom = false;
    vmm.write();
    disk.hold(true);
    await seconds(3);
    assert.equal(vmm.continued, 0);
    disk.hold(false);
    mock.timers.tick(1_000);
    disk.hold(true);
    await seconds(3);
    assert.equal(vmm.continued, 0);
    disk.hold(false);
    await seconds(1);
    assert.equal(vmm.continued, 1);
  });

  it('that was paused before is found paused, and nothing is done for an error that the guest was told of', async () => {
    assert.equal(await disk.look(), false);
    vmm.hasRoom = false;
    vmm.write('report');
    await seconds(2);
    assert.equal(vmm.continued, 0);
    vmm.write();
    const next = new ScriptedVmm();
    next.status = 'io-error';
    assert.equal(await new EnospcMonitor(next.qmp, log, ignore, ignore).look(), true);
    await seconds(2);
    assert.equal(next.status, 'running');
  });
});
