/** A whole Releap service to measure: the real one, as `npm start` runs it, in a home of its own. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { partPids } from '@releap/testing/processes';
import { Service } from '@releap/testing/service';
import { TEST_CACHE } from '@releap/testing/test-cache';
import { cpuSeconds, family, identify, until } from './processes.ts';

/** Templates and images are made once for all measurements. */
export const CACHE = TEST_CACHE;
const QUIET_MS = 250;
/** Share of one core below which a service counts as quiet. */
const QUIET_SHARE = 0.06;

export class MeasuredService implements AsyncDisposable {
  readonly warmPool: number;
  /** For everything that is not measured by its time. */
  readonly service: Service;
  #toolbox = '';

  private constructor(service: Service, warmPool: number) {
    this.service = service;
    this.warmPool = warmPool;
  }

  /** @param options.warmPool micro-VMs kept waiting; 0 for none. @param options.images built in; `busybox` is one of them */
  static async start(options: {
    warmPool: number;
    images?: string[];
    environment?: Record<string, string>;
  }): Promise<MeasuredService> {
    const { warmPool: pool, images = ['busybox'], environment } = options;
    const started = await Service.start({
      ...environment,
      RELEAP_WARM_POOL: String(pool),
      RELEAP_BUILTIN_IMAGES: images.join(','),
    });
    const service = new MeasuredService(started, options.warmPool);
    try {
      service.#toolbox = await started.toolboxUrl();
      // One sandbox through everything: no sample includes what is loaded or created on first use.
      await service.remove(await service.createAndRun());
      await service.settled(0);
      return service;
    } catch (error) {
      await service[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** POST /vms, then a long poll until it runs. @returns its id */
  async create(request: Record<string, unknown> = {}): Promise<string> {
    const body = { image: 'busybox', ...request };
    const { vm_id: id } = await this.call<{ vm_id: string }>('POST', '/vms', body);
    await this.running(id);
    return id;
  }

  /** Waits until it runs. @throws when it does not */
  async running(id: string): Promise<void> {
    const { status, error } = await this.service.waitFor(id, 'running');
    if (status !== 'running') {
      const said = this.service.output.slice(-5000);
      throw new Error(
        `sandbox ${id} is ${String(status)}: ${typeof error === 'string' ? error : 'not in time'}\n${said}`,
      );
    }
  }

  /** `true` through the gateway. */
  async runTrue(id: string): Promise<void> {
    const answer = await this.call<{ exitCode: number }>('POST', `${this.#toolbox}/${id}/process/execute`, {
      command: 'true',
    });
    if (answer.exitCode !== 0) throw new Error(`true answered ${JSON.stringify(answer)}`);
  }

  async createAndRun(request?: Record<string, unknown>): Promise<string> {
    const id = await this.create(request);
    await this.runTrue(id);
    return id;
  }

  /** POST /vms/:id/stop, then a long poll. */
  async stop(id: string): Promise<void> {
    await this.call('POST', `/vms/${id}/stop`);
    const { status } = await this.call<{ status: string }>(
      'GET',
      `/vms/${id}?wait_exact=stopped&timeout_ms=60000`,
    );
    if (status !== 'stopped') throw new Error(`sandbox ${id} is ${status} and not stopped`);
  }

  async remove(id: string): Promise<void> {
    await this.call('DELETE', `/vms/${id}`);
  }

  /**
   * Waits until the host holds `sandboxes` micro-VMs and a full pool, and nothing of the service is busy any more,
   * so that one sample does not pay for the one before.
   */
  async settled(sandboxes: number): Promise<void> {
    const folder = join(this.service.home, 'runner', 'vms');
    // Beside the VMs one VMM waits for a fork, and more of both where demand says so.
    const waiting = this.warmPool === 0 ? 0 : this.warmPool + 1;
    await until(`the service holds ${sandboxes} sandboxes and ${waiting} that wait`, async () => {
      const names = await readdir(folder).catch(() => []);
      const warm = names.filter((name) => name.startsWith('warm-')).length;
      return warm >= waiting && names.length === sandboxes + warm;
    });
    await until('the service is quiet', async () => {
      const pids = [...(await this.processes()).map(({ pid }) => pid), ...(await this.vmms())];
      const before = await cpuSeconds(pids);
      await sleep(QUIET_MS);
      return (await cpuSeconds(pids)) - before <= (QUIET_SHARE * QUIET_MS) / 1000;
    });
  }

  /** Processes of the VMMs, waiting ones included. */
  async vmms(): Promise<number[]> {
    const folder = join(this.service.home, 'runner', 'vms');
    const pids = await Promise.all(
      (await readdir(folder).catch(() => [])).map(async (name) => {
        try {
          const record = JSON.parse(await readFile(join(folder, name, 'vm.json'), 'utf8')) as {
            process?: { pid: number };
          };
          return record.process?.pid;
        } catch {
          // Created or removed just now.
          return undefined;
        }
      }),
    );
    return pids.filter((pid) => pid !== undefined);
  }

  /** The service's own processes with the role of each, without VMMs and short-lived tools. */
  async processes(): Promise<{ pid: number; part: string }[]> {
    const { postgres, ...roles } = await partPids(this.service.home);
    const partOf = new Map(Object.entries(roles).map(([role, pid]) => [pid, role]));
    const main = roles.control === undefined ? undefined : (await identify(roles.control))?.parent;
    if (main === undefined) throw new Error('the service has no control plane');
    const database = new Set(postgres === undefined ? [] : (await family(postgres)).map(({ pid }) => pid));
    // VMMs have sessions of their own, but the runner for a parent while it lives.
    const known = new Map([...[...database].map((pid) => [pid, 'PostgreSQL'] as const), ...partOf]);
    known.set(main, 'supervisor');
    return (await family(main)).flatMap(({ pid }) => {
      const part = known.get(pid);
      return part === undefined ? [] : [{ pid, part }];
    });
  }

  /** One request with the project's key. @throws when it is not answered with success */
  async call<T = unknown>(method: string, path: string, body?: unknown): Promise<T> {
    const { base_url: base, api_key: key } = this.service.bootstrap;
    const answer = await fetch(path.startsWith('http') ? path : base + path, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(90_000),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path} answered ${answer.status}: ${text.slice(0, 500)}`);
    return JSON.parse(text) as T;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.service[Symbol.asyncDispose]();
  }
}

/** Absolute path of the built-in busybox image's root file system, which a service here has made. */
export async function busyboxRoot(): Promise<string> {
  const alias = join(CACHE, 'images/aliases/builtin-busybox.json');
  const { digest } = JSON.parse(await readFile(alias, 'utf8')) as { digest: string };
  return join(CACHE, 'images', digest.replace(':', '-'), 'root.squashfs');
}
