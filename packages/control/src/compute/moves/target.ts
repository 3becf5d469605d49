/** The host that a sandbox is moved to. */
import { cpuMarker, quote } from '@releap/contract';
import { MOVES_CAPABILITY } from '@releap/contract/runner';
import type { Overcommit } from '../scheduler/overcommit.ts';
import { choose, type Host, type Need } from '../scheduler/placement.ts';
import { platformMismatch } from '../snapshots/restore.ts';

export interface TargetNeed {
  need: Need;
  /** Its host. */
  source: Host | undefined;
  /** Its memory is moved, which only a host like its own can resume. The target itself has the last word. */
  hasMemory: boolean;
  /** Hosts that still have a copy of it. */
  exclude: readonly string[];
}

const canMove = ({ capabilities }: Host): boolean => capabilities?.includes(MOVES_CAPABILITY) === true;

/** @returns the host, or why there is none: what the move waits for */
export function chooseTarget(
  { need, source, hasMemory, exclude }: TargetNeed,
  hosts: readonly Host[],
  overcommit: Overcommit,
): { host: Host } | { reason: string } {
  if (source === undefined) return { reason: 'its host has not been heard from for long' };
  if (!canMove(source)) return { reason: 'its host has an earlier version, which cannot move sandboxes' };
  const region = `region ${quote(need.region)}`;
  const others = hosts.filter(
    (host) =>
      host.id !== source.id && host.region === need.region && !exclude.includes(host.id) && canMove(host),
  );
  if (others.length === 0) return { reason: `no other host of ${region} takes moved sandboxes` };
  if (!hasMemory) return choose(need, others, overcommit);
  const saved = { fc_version: source.facts.vmm, cpu_marker: cpuMarker(source.facts) };
  const alike = others.filter(({ facts }) => platformMismatch(saved, facts) === undefined);
  if (alike.length === 0)
    return {
      reason: `no other host of ${region} can resume its memory, which needs the VMM ${quote(saved.fc_version)} and the CPU ${quote(saved.cpu_marker)}`,
    };
  return choose(need, alike, overcommit);
}
