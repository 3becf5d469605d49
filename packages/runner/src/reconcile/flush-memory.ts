import type { Logger } from 'pino';
import { AgentConnection } from './agent-connection.ts';
import type { Assignment } from './assignment.ts';
import { powerOff } from './guest-life.ts';
import type { MachineStarts } from './machine-starts.ts';
import type { SandboxHistory } from './sandbox-host.ts';

/** Restores a suspend image and powers its guest off, so that its dirty pages are on its disk. */
export async function flushMemory(
  starts: MachineStarts,
  assignment: Assignment,
  past: SandboxHistory,
  signal: AbortSignal,
  log: Logger,
): Promise<void> {
  const restore = async (rootImagePath: string) =>
    await starts.fromMemory(assignment, rootImagePath, 'flushing', () => undefined, signal);
  const { running } = await starts.whenAdmitted(assignment, past, restore, signal);
  const agent = new AgentConnection(() => undefined, log);
  try {
    // Frozen processes are killed without thawing.
    const guest = await agent.open(running.agentSocketPath, signal);
    await powerOff(running, guest, 0, signal);
  } finally {
    agent.close();
    await running.vm.kill();
  }
}
