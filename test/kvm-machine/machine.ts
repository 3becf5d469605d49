/**
 * A Debian machine with the real KVM interface, on a host without KVM hardware: QEMU emulates a processor of AMD with SVM and
 * nested paging. Everything in it runs at emulated speed; its guests about as fast as itself.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { type FileLock, lockFile } from '@releap/runner/file-lock';
import { REPO } from '@releap/testing/service';
import { readHostCpu } from '../../packages/runner/src/vmm/host-cpu.ts';
import { unpackedVmm, vmmCommand } from '../../packages/runner/src/vmm/qemu/vmm-store.ts';

/** Its disk stays from run to run. */
const FOLDER = join(REPO, 'build/kvm-machine');
const MEMORY_MIB = 8192;
const CPUS = 2;
/**
 * Without five-level page tables and without instructions that only promise speed, as guests that Releap emulates. With virtual
 * GIF, machines have hung.
 */
const CPU = 'max,la57=off,erms=off,fsrm=off,vgif=off';
const APPEND =
  'root=/dev/vda rootfstype=xfs rw console=ttyS0 mitigations=off nohz=off nowatchdog rcupdate.rcu_cpu_stall_suppress=1 panic=-1';
const CONSOLE_TAIL = 3_000;

/**
 * Brings the machine's disk up to date with the present files of the repository: minutes, and a quarter hour the first time.
 * @returns the lock on the disk: another run neither writes nor boots it until it is released
 */
export async function prepareDisk(scratch: string, say: (line: string) => void): Promise<FileLock> {
  await mkdir(FOLDER, { recursive: true });
  const lock = await lockFile(join(FOLDER, 'lock'), { wait: true });
  const root = join(scratch, 'root');
  await mkdir(root);
  const apart = ['--mount', '--pid', '--fork', '--kill-child', '--mount-proc'];
  const program = [process.execPath, join(import.meta.dirname, 'disk.ts'), FOLDER, root];
  const child = spawn('unshare', [...apart, '--', ...program], { stdio: ['ignore', 'pipe', 'pipe'] });
  const output: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      output.push(line);
      say(line);
    });
  }
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`the machine's disk was not made:\n${output.slice(-20).join('\n')}`);
  return lock;
}

export class KvmMachine implements Disposable {
  readonly #vmm: ChildProcess;
  readonly #listeners = new Set<(line: string) => void>();
  readonly #ended: Promise<never>;

  private constructor(vmm: ChildProcess, console: string) {
    this.#vmm = vmm;
    let said = '';
    vmm.stderr?.on('data', (chunk: Buffer) => (said = (said + chunk.toString()).slice(-CONSOLE_TAIL)));
    if (vmm.stdout !== null)
      createInterface({ input: vmm.stdout }).on('line', (line) => {
        for (const listener of this.#listeners) listener(line);
      });
    this.#ended = once(vmm, 'close').then(async () => {
      const text = await readFile(console, 'latin1').catch(() => '');
      throw new Error(`the machine ended; QEMU: ${said}; its console: ${text.slice(-CONSOLE_TAIL)}`);
    });
    this.#ended.catch(() => undefined);
  }

  /**
   * Boots the machine. What it writes is gone with it, unless that is to be kept.
   * @param scratch an existing folder for this
   * @param options.disk one that an earlier machine has kept
   * @param options.keep file for its disk; must not exist
   */
  static async boot(scratch: string, options: { disk?: string; keep?: string } = {}): Promise<KvmMachine> {
    const vmm = await unpackedVmm(join(REPO, 'build'));
    if (vmm === undefined) throw new Error('there is no VMM: run the set-up first (npm test)');
    const { program, args, env } = vmmCommand(vmm.folder);
    const console = join(scratch, 'console.log');
    const { disk = join(FOLDER, 'disk.raw'), keep } = options;
    // A copy of what it holds, or of nothing where the file system clones files.
    if (keep !== undefined) execFileSync('cp', ['--sparse=always', '--reflink=auto', disk, keep]);
    const lasts = keep === undefined ? 'on' : 'off';
    const drive = `file=${keep ?? disk},format=raw,if=none,id=disk,snapshot=${lasts},discard=unmap`;
    const { tscKhz } = await readHostCpu();
    const machine = ['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-machine', 'q35'];
    machine.push(
      '-accel',
      'tcg,thread=multi,tb-size=1024',
      '-cpu',
      CPU,
      '-smp',
      `${CPUS}`,
      '-m',
      `${MEMORY_MIB}M`,
    );
    // No option ROMs: set-up has not unpacked them.
    machine.push('-drive', drive, '-device', 'virtio-blk-pci,drive=disk');
    machine.push('-netdev', 'user,id=net,restrict=on', '-device', 'virtio-net-pci,netdev=net,romfile=');
    machine.push(
      '-device',
      'virtio-rng-pci',
      '-device',
      'virtio-serial-pci',
      '-chardev',
      'stdio,id=commands,signal=off',
    );
    machine.push(
      '-device',
      'virtserialport,chardev=commands,name=releap.commands',
      '-serial',
      `file:${console}`,
    );
    machine.push(
      '-kernel',
      join(FOLDER, 'vmlinuz'),
      '-initrd',
      join(FOLDER, 'initrd.img'),
      '-append',
      `${APPEND} ${clockOptions(tscKhz)}`,
    );
    const child = spawn(program, [...args, ...machine], {
      stdio: ['pipe', 'pipe', 'pipe'],
      // The temporary file of `snapshot=on` lies there.
      env: { ...process.env, ...env, TMPDIR: scratch },
    });
    const booted = new KvmMachine(child, console);
    try {
      await booted.run('uname -r');
    } catch (error) {
      booted[Symbol.dispose]();
      throw error;
    }
    return booted;
  }

  /**
   * Runs a shell script in the machine, one at a time.
   * @param onLine gets each line of its output
   * @throws when the machine ends before
   */
  async run(script: string, onLine?: (line: string) => void): Promise<{ code: number; output: string }> {
    const end = `ended-${randomUUID()}`;
    const lines: string[] = [];
    const code = new Promise<number>((resolve) => {
      const listener = (line: string): void => {
        const [before = '', status] = line.split(`${end} `);
        // Output that ends without a line feed is before it.
        if (status === undefined || before !== '') {
          lines.push(before);
          onLine?.(before);
        }
        if (status === undefined) return;
        this.#listeners.delete(listener);
        resolve(Number(status));
      };
      this.#listeners.add(listener);
    });
    // Not through the shell's own input, which what it starts would read too.
    const text = Buffer.from(script).toString('base64');
    this.#vmm.stdin?.write(
      `echo ${text} | base64 -d > /run/script; sh /run/script < /dev/null; echo "${end} $?"\n`,
    );
    return { code: await Promise.race([code, this.#ended]), output: lines.join('\n') };
  }

  [Symbol.dispose](): void {
    this.#vmm.kill('SIGKILL');
  }
}

/**
 * The emulator's time-stamp counter is the host's, but not AMD's flag that says so: without `tsc=reliable` the machine has no TSC as a
 * clock source, and its KVM no master clock. It is told the frequency, as on a busy host it measures a wrong one by emulated timers, and
 * its guests get that: its clock once was 2.7 times too fast.
 */
function clockOptions(tscKhz: number | undefined): string {
  return `tsc=reliable${tscKhz === undefined ? '' : ` tsc_early_khz=${tscKhz}`}`;
}
