import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { uuidOf } from '@releap/testing/service';
import type { Probe } from '../probe/probe.ts';
import { monotonic } from '../probe/probe.ts';
import type { MeasuredService } from '../service.ts';

const ECHO_PORT = 7;
/** No earlier request is in flight any more. */
const CALM_MS = 100;
const AGAIN_MS = 3;

/** The sandbox under test, with an echo server in it for clients outside. */
export class Subject {
  readonly id: string;
  readonly uuid: string;
  readonly #service: MeasuredService;

  private constructor(service: MeasuredService, id: string) {
    this.#service = service;
    this.id = id;
    this.uuid = uuidOf(id);
  }

  static async create(service: MeasuredService, request: Record<string, unknown>): Promise<Subject> {
    const id = await service.createAndRun(request);
    const subject = new Subject(service, id);
    await subject.exec(`nc -ll -p ${ECHO_PORT} -e cat > /dev/null 2>&1 < /dev/null &`);
    return subject;
  }

  /** A command that has to succeed. @returns what it printed */
  async exec(command: string): Promise<string> {
    const { exitCode, result } = await this.#service.service.exec(this.id, command);
    if (exitCode !== 0) throw new Error(`'${command.slice(0, 80)}' ended with ${exitCode}: ${result}`);
    return result;
  }

  /**
   * Writes to so much of the guest's memory, always to the same pages and never what they held before: a random
   * megabyte, over and over. (So many random bytes would take an emulated guest minutes.)
   */
  async dirty(mib: number): Promise<void> {
    const seed = '/dev/shm/seed';
    // Servers of connections that a pause has ended do not notice that.
    await this.exec(
      `killall -q cat; dd if=/dev/urandom of=${seed} bs=1M count=1 2> /dev/null; ` +
        `cat ${`${seed} `.repeat(mib)} 1<> /dev/shm/dirty`,
    );
  }

  /** The probe talks to it from now on, straight at its address: what is measured is the guest alone. */
  async listenedToBy(probe: Probe): Promise<void> {
    const { vm_ip } = await this.#service.call<{ vm_ip: string }>('GET', `/vms/${this.id}`);
    await probe.connect(vm_ip, ECHO_PORT);
    await sleep(CALM_MS);
  }

  /** POST, then a long poll. */
  async pause(): Promise<void> {
    await this.#service.call('POST', `/vms/${this.id}/pause`);
    const { status } = await this.#service.call<{ status: string }>(
      'GET',
      `/vms/${this.id}?wait_exact=paused&timeout_ms=60000`,
    );
    if (status !== 'paused') throw new Error(`sandbox ${this.id} is ${status} and not paused`);
  }

  /** POST, a long poll, and `true` through the gateway. */
  async resumeAndRun(): Promise<void> {
    await this.#service.call('POST', `/vms/${this.id}/resume`);
    await this.#service.running(this.id);
    await this.#service.runTrue(this.id);
  }

  /**
   * POST, a long poll, and `true` in the child through the gateway. While another fork of it is being taken the answer
   * is 409, and the client asks again.
   * @returns the child's id
   */
  async forkAndRun(): Promise<string> {
    const { service } = this.#service;
    for (;;) {
      const { status, body } = await service.call<{ vm_id: string; error?: string }>(
        'POST',
        `/vms/${this.id}/fork`,
        {},
      );
      if (status === 409 && body.error?.includes('in progress') === true) {
        await sleep(AGAIN_MS);
        continue;
      }
      if (status >= 300) throw new Error(`POST fork answered ${status}: ${body.error}`);
      await this.#service.running(body.vm_id);
      await this.#service.runTrue(body.vm_id);
      return body.vm_id;
    }
  }

  /** POST, then a long poll until it is ready. @returns its id */
  async snapshot(kind: 'disk' | 'full', name: string): Promise<string> {
    const { id } = await this.#service.call<{ id: string }>('POST', `/vms/${this.id}/snapshots`, {
      name,
      kind,
    });
    const { status, error } = await this.#service.call<{ status: string; error: string | null }>(
      'GET',
      `/snapshots/${id}?wait=ready&timeout_ms=60000`,
    );
    if (status !== 'ready') throw new Error(`snapshot ${name} is ${status}: ${error}`);
    return id;
  }

  /** Its suspend image, once it is paused. */
  get keep(): string {
    return join(this.#service.service.home, 'runner/vms', this.uuid, 'keep');
  }

  async vmm(): Promise<number> {
    return await this.#service.service.vmm(this.id);
  }

  async remove(): Promise<void> {
    await this.#service.service.remove(this.id);
  }
}

/** The largest gap in a time in which nothing is asked of the service. */
export async function quietGap(probe: Probe, ms: number): Promise<number> {
  const from = monotonic();
  await sleep(ms);
  return (await probe.gap(from, monotonic())).largest;
}
