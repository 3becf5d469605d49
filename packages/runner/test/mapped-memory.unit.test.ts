import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { link, mkdir, mkdtemp, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { isOwnMemory, openMemory } from '../src/machine/mapped-memory.ts';

let root: string;
before(async () => {
  root = await mkdtemp(join(tmpdir(), 'releap-mm-'));
});
after(async () => {
  await rm(root, { recursive: true, force: true });
});

/** The folder of a VM with a process that has its memory file as descriptor 3, as a VMM has. */
class TestVm implements AsyncDisposable {
  readonly folder: string;
  readonly saved: string;
  #child: ReturnType<typeof spawn> | undefined;

  private constructor(folder: string) {
    this.folder = folder;
    this.saved = join(folder, 'keep', 'memory');
  }

  /** @param origin its memory is another name of this file, or a new one */
  static async create(origin?: TestVm): Promise<TestVm> {
    const vm = new TestVm(await mkdtemp(join(root, 'vm-')));
    await mkdir(join(vm.folder, 'keep'));
    if (origin === undefined) await writeFile(vm.saved, 'memory');
    else await link(origin.saved, vm.saved);
    return vm;
  }

  async start(): Promise<this> {
    await using memory = await openMemory(this.saved, this.folder);
    this.#child = spawn('sleep', ['600'], { stdio: ['ignore', 'ignore', 'ignore', memory.fd] });
    await once(this.#child, 'spawn');
    return this;
  }

  async isOwn(): Promise<boolean> {
    return await isOwnMemory(this.pid, this.saved, this.folder);
  }

  /** It ends, and all of its folder but what is kept. */
  async end(): Promise<void> {
    await this[Symbol.asyncDispose]();
    await rm(join(this.folder, 'mapped-memory'));
  }

  /** Another file takes the place of its memory, as when a pause fails after that. */
  async replaceMemory(): Promise<void> {
    await writeFile(`${this.saved}.next`, 'newer');
    await rename(`${this.saved}.next`, this.saved);
  }

  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child === undefined) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  }
}

describe('a memory file that a VMM maps', () => {
  it('is opened for reading only, and is not copied', async () => {
    await using vm = await (await TestVm.create()).start();
    assert.equal((await stat(`/proc/${vm.pid}/fd/3`)).ino, (await stat(vm.saved)).ino);
    const flags = /^flags:\s+(\d+)$/m.exec(await readFile(`/proc/${vm.pid}/fdinfo/3`, 'utf8'))?.[1];
    assert.equal(Number.parseInt(flags ?? '', 8) & 3, 0);
  });

  it('may be written to when all of its names belong to the one VM', async () => {
    await using vm = await (await TestVm.create()).start();
    assert.equal(await vm.isOwn(), true);
  });

  it('may not while a fork or a snapshot has it, and may again when that is gone', async () => {
    await using vm = await TestVm.create();
    const other = join(root, 'snapshot-memory');
    await link(vm.saved, other);
    await vm.start();
    assert.equal(await vm.isOwn(), false);
    await rm(other);
    assert.equal(await vm.isOwn(), true);
  });

  it('may not while another VMM maps it, whose pause failed after it had saved newer memory', async () => {
    await using one = await (await TestVm.create()).start();
    await using other = await (await TestVm.create(one)).start();
    await one.replaceMemory();
    assert.deepEqual([await one.isOwn(), await other.isOwn()], [false, false]);
    await one.end();
    assert.equal(await other.isOwn(), true);
  });

  it('may not while another VMM maps it that has nothing kept any more', async () => {
    await using one = await (await TestVm.create()).start();
    await using other = await (await TestVm.create(one)).start();
    await rm(one.saved);
    assert.equal(await other.isOwn(), false);
  });

  it('may not when it is none of the names of the VM', async () => {
    await using vm = await (await TestVm.create()).start();
    await rm(vm.saved);
    assert.equal(await vm.isOwn(), false);
  });
});
