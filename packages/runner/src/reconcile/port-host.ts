import { conflict } from '@releap/contract';
import type { PortHost } from '../ports/port-stream.ts';
import type { Sandbox } from './sandbox.ts';

/**
 * Where the ports of a sandbox are reached, undefined for an unknown one.
 * @throws ApiError 409 when it does not run
 */
export function portHost(sandbox: Pick<Sandbox, 'live' | 'observation'> | undefined): PortHost | undefined {
  if (sandbox === undefined) return undefined;
  const { live } = sandbox;
  if (live === undefined) throw conflict(`the sandbox is ${sandbox.observation.status}, and must be running`);
  return { address: live.addresses.vm_ip, guest: () => live.guest() };
}
