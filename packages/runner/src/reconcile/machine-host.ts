import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Assignment, Observation, PortMapping, RootSource, SandboxSpec } from '@releap/contract';
import type { Logger } from 'pino';
import type { GuestConfig } from '../guest/index.ts';
import type { ImageStore } from '../image/image-store.ts';
import { LogFile } from '../logs/log-file.ts';
import type { Machines, RunningVm, WarmPool } from '../machine/index.ts';
import { GUEST } from '../network/address-plan.ts';
import type { Network } from '../network/network.ts';
import type { Slot } from '../network/slot.ts';
import { racePoint } from '../race-point.ts';
import { AgentLine } from './agent-line.ts';
import type { HeldImage, LiveSandbox, SandboxHost } from './sandbox-host.ts';

/** The agent mounts three disks and starts the entrypoint; seconds only on a machine that is overloaded. */
const CONFIGURE_DEADLINE_MS = 60_000;
const VMM_END_GRACE_MS = 1_000;
/** RFC 1035 §2.3.4 */
const HOSTNAME_MAX = 63;

export interface MachineHostOptions {
  machines: Machines;
  images: ImageStore;
  network: Network;
  /** Machines of the default shape that wait for a sandbox. */
  pool: WarmPool<Slot>;
  /** Folder of the sandboxes' logs; each has one of its own in it. */
  logsFolder: string;
  /** Address that declared ports are published on. */
  listenHost: string;
  log: Logger;
}

type Events = { onExit: (reason: string) => void };

/** Sandboxes as micro-VMs of this machine: image, network slot, VM, agent and logs brought together. */
export class MachineHost implements SandboxHost {
  readonly #options: MachineHostOptions;

  constructor(options: MachineHostOptions) {
    this.#options = options;
  }

  async hasImage(source: RootSource): Promise<boolean> {
    return await this.#options.images.has(source);
  }

  async acquireImage(source: RootSource, signal: AbortSignal): Promise<HeldImage> {
    const held = await this.#options.images.acquire(source, { signal });
    const { digest, path, config } = held.image;
    return { digest, path, config, [Symbol.dispose]: () => held.release() };
  }

  async boot(
    assignment: Assignment,
    image: HeldImage,
    events: Events,
    signal: AbortSignal,
  ): Promise<LiveSandbox> {
    const { network, log } = this.#options;
    const { vm_id: vmId, spec } = assignment;
    const startedAt = performance.now();
    const logs = this.#openLogs(vmId);
    logs.console.write(
      Buffer.from(
        `[releap] ${new Date().toISOString()} ${spec.vcpus} CPUs, ${spec.mem_mib} MiB, root image ${image.digest}\n`,
      ),
    );
    const agent = new AgentLine((data) => logs.entrypoint.write(data), log);
    let running: RunningVm | undefined;
    try {
      const started = await this.#start(assignment, image, (chunk) => logs.console.write(chunk), signal);
      running = started.running;
      racePoint('create:restored');
      const died = Promise.withResolvers<never>();
      died.promise.catch(() => undefined);
      running.vm.onExit((reason) => {
        died.reject(new Error(reason));
        events.onExit(reason);
      });
      const guest = await agent.open(running.agentSocketPath, signal);
      const configured = guest.configure(guestConfig(vmId, spec, image, running, started.slot.dns), {
        signal,
        deadlineMs: CONFIGURE_DEADLINE_MS,
      });
      // When the VMM dies its connections close first; its end is the better reason.
      const failed = configured.catch(async (error: unknown) => {
        if (!signal.aborted)
          await Promise.race([sleep(VMM_END_GRACE_MS, undefined, { ref: false }), died.promise]);
        throw error;
      });
      await Promise.race([failed, died.promise]);
      racePoint('create:configured');
      const ports = await network.forward(vmId, spec.ports);
      log.info(
        {
          vm: vmId,
          warm: started.warm,
          ms: Math.round(performance.now() - startedAt),
          steps: running.timings,
        },
        'sandbox runs',
      );
      return this.#live(running, agent, logs, started.slot.hostAddress, ports);
    } catch (error) {
      agent.close();
      running?.vm.detach();
      await closeLogs(logs);
      throw error;
    }
  }

  /** A micro-VM with the sandbox's disks and network, its guest running: a waiting one, or one restored now. */
  async #start(
    { vm_id: vmId, spec }: Assignment,
    image: HeldImage,
    onConsole: (chunk: Buffer) => void,
    signal: AbortSignal,
  ): Promise<{ running: RunningVm; slot: Slot; warm: boolean }> {
    const { machines, network, pool } = this.#options;
    const shape = { vcpus: spec.vcpus, memMib: spec.mem_mib };
    const disks = {
      rootImagePath: image.path,
      scratchMib: spec.scratch_mib,
      ...(spec.docker_data_mib === undefined ? {} : { dockerDataMib: spec.docker_data_mib }),
    };
    const cpu = { guaranteed: spec.cpu, max: spec.mode === 'dedicated' ? spec.cpu : spec.vcpus };
    const egress = spec.egress === undefined ? {} : { egress: spec.egress };
    const options = { vmId, disks, cpu, onConsole, signal };

    const warm = pool.take({ shape, scratchMib: spec.scratch_mib, dockerDataMib: spec.docker_data_mib });
    if (warm !== undefined) {
      try {
        // The sandbox's policy first: its VM never runs on a network without it.
        const slot = await network.transfer(warm.id, vmId, egress);
        racePoint('create:slot');
        return { running: await warm.attach(options), slot, warm: true };
      } catch (error) {
        await warm.discard();
        throw error;
      }
    }
    const slot = await network.take(vmId, egress);
    racePoint('create:slot');
    return { running: await machines.boot({ ...options, slot, shape }), slot, warm: false };
  }

  async adopt(assignment: Assignment, observation: Observation, events: Events): Promise<LiveSandbox> {
    const { machines, network, log } = this.#options;
    const vmId = assignment.vm_id;
    const slot = network.adopt(vmId);
    if (slot === undefined) throw new Error('its network is gone');
    const logs = this.#openLogs(vmId);
    try {
      const running = await machines.adopt(vmId, { onConsole: (chunk) => logs.console.write(chunk) });
      running.vm.onExit(events.onExit);
      const agent = new AgentLine((data) => logs.entrypoint.write(data), log);
      await agent.adopt(running.agentSocketPath);
      const ports = await network.forward(vmId, assignment.spec.ports, observation.port_map);
      return this.#live(running, agent, logs, slot.hostAddress, ports);
    } catch (error) {
      await closeLogs(logs);
      throw error;
    }
  }

  async destroy(vmId: string): Promise<void> {
    // The network may go only when nothing can send on it any more.
    await this.#options.machines.destroy(vmId);
    await this.#options.network.release(vmId);
  }

  logPath(vmId: string, kind: 'console' | 'entrypoint'): string {
    return join(this.#options.logsFolder, vmId, `${kind}.log`);
  }

  #openLogs(vmId: string): { console: LogFile; entrypoint: LogFile } {
    return {
      console: new LogFile(this.logPath(vmId, 'console')),
      entrypoint: new LogFile(this.logPath(vmId, 'entrypoint')),
    };
  }

  #live(
    running: RunningVm,
    agent: AgentLine,
    logs: { console: LogFile; entrypoint: LogFile },
    vmIp: string,
    ports: PortMapping[],
  ): LiveSandbox {
    return {
      guest: () => agent.connected(),
      addresses: { vm_ip: vmIp, host_ip: this.#options.listenHost, port_map: ports },
      ...logs,
      close: async () => {
        agent.close();
        running.vm.detach();
        await closeLogs(logs);
      },
    };
  }
}

async function closeLogs(logs: { console: LogFile; entrypoint: LogFile }): Promise<void> {
  await Promise.all([logs.console.close(), logs.entrypoint.close()]);
}

function guestConfig(
  vmId: string,
  spec: SandboxSpec,
  image: HeldImage,
  running: RunningVm,
  dns: string[],
): GuestConfig {
  const { config } = image;
  const argv = [...config.entrypoint, ...config.cmd];
  return {
    hostname: hostname(spec.name, vmId),
    machineId: vmId.replaceAll('-', ''),
    clockNs: BigInt(Date.now()) * 1_000_000n,
    // The guest's random generator is the template's until this: every restored copy would draw the same numbers.
    entropy: randomBytes(64),
    dns,
    network: { address: GUEST.ip, prefix: GUEST.prefix, gateway: GUEST.gatewayIp, mtu: GUEST.mtu },
    disks: {
      root: { device: 'vda', fstype: 'squashfs' },
      scratch: { device: 'vdb', bytes: running.diskBytes.scratch },
      ...(spec.docker_data_mib === undefined
        ? {}
        : { docker: { device: 'vdc', bytes: running.diskBytes.docker } }),
    },
    env: { ...config.env, ...spec.env },
    ...(config.user === '' ? {} : { user: config.user }),
    ...(config.workingDir === '' ? {} : { workingDir: config.workingDir }),
    ...(argv.length === 0 ? {} : { entrypoint: { argv } }),
  };
}

/** A display name as a host name: what DNS allows of it, or the id where nothing is left. */
function hostname(name: string, vmId: string): string {
  const label = name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, '-')
    .slice(0, HOSTNAME_MAX)
    .replaceAll(/^-+|-+$/g, '');
  return label === '' ? `sandbox-${vmId.slice(0, 8)}` : label;
}
