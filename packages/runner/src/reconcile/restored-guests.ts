/** Guests that continue with their processes: after a pause, as a fork, or after a runner that ended meanwhile. */
import type { PortMapping } from '@releap/contract';
import type { ImageStore } from '../image/image-store.ts';
import type { RunningVm } from '../machine/index.ts';
import type { Network } from '../network/network.ts';
import type { AgentConnection } from './agent-connection.ts';
import type { Assignment } from './assignment.ts';
import { environmentOf, identityOf } from './guest-config.ts';
import { renewIdentity, renewRestored, watch } from './guest-life.ts';
import type { IdentityUpdate } from './guest-life.ts';
import type { SandboxEvents, SandboxHistory } from './sandbox-host.ts';

export class RestoredGuests {
  readonly #images: Pick<ImageStore, 'find'>;
  readonly #network: Pick<Network, 'forward'>;

  constructor({ images, network }: { images: Pick<ImageStore, 'find'>; network: Pick<Network, 'forward'> }) {
    this.#images = images;
    this.#network = network;
  }

  /** Gives a guest that was restored with its processes its identity, and resumes them. @returns its port mapping */
  async resume(
    assignment: Assignment,
    past: SandboxHistory,
    { running, agent, events }: { running: RunningVm; agent: AgentConnection; events: SandboxEvents },
    signal: AbortSignal,
  ): Promise<PortMapping[]> {
    const died = watch(running, events);
    const guest = await agent.open(running.agentSocketPath, signal);
    // Before anything starts that could fail without a listener.
    const renewal = await this.#renewal(assignment, past);
    const [ports] = await Promise.all([
      this.#network.forward(assignment.vm_id, assignment.spec.ports, past.ports),
      Promise.race([renewRestored(agent, guest, renewal), died]),
    ]);
    return ports;
  }

  /** Identity of a restored guest. With its environment only if the image, which is a part of it, is available. */
  async #renewal({ vm_id: vmId, spec }: Assignment, past: SandboxHistory): Promise<IdentityUpdate> {
    const image = past.manifest === undefined ? undefined : await this.#images.find(past.manifest);
    return { ...identityOf(vmId, spec), ...(image && { env: environmentOf(spec, image.config) }) };
  }

  /** Resumes a guest that the previous runner left paused or frozen because it ended during a pause, resume or capture. */
  async recoverPaused(
    assignment: Assignment,
    past: SandboxHistory,
    { running: { vm }, agent }: { running: RunningVm; agent: AgentConnection },
    signal: AbortSignal,
  ): Promise<void> {
    const wasPaused = !(await vm.isRunning());
    if (wasPaused) await vm.continue();
    const guest = await agent.connected();
    const { frozen } = await guest.hello();
    if (wasPaused || frozen) await renewIdentity(guest, await this.#renewal(assignment, past), { signal });
  }
}
