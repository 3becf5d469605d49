import { randomBytes } from 'node:crypto';
import type { GuestStore, SandboxSpec } from '@releap/contract';
import { nowNs } from '../guest/index.ts';
import type { GuestConfig, StoreMount } from '../guest/index.ts';
import type { ImageConfig } from '../image/image-config.ts';
import type { RunningVm } from '../machine/index.ts';
import { GUEST } from '../network/address-plan.ts';
import { guestSize } from '../template/machine-size.ts';
import type { HeldImage } from './sandbox-host.ts';

/** RFC 1035 §2.3.4 */
const HOSTNAME_MAX = 63;

/** Configuration of a guest at boot: the same identity each time, with the current time and new random numbers. */
export function guestConfig(
  vmId: string,
  spec: SandboxSpec,
  image: HeldImage,
  running: RunningVm,
  dns: string[],
): GuestConfig {
  const { config } = image;
  const { reservedMib } = guestSize({ vcpus: spec.vcpus, memMib: spec.mem_mib });
  const user = spec.user ?? config.user;
  const argv = spec.entrypoint ?? [...config.entrypoint, ...config.cmd];
  return {
    ...identityOf(vmId, spec),
    ...freshness(),
    dns,
    network: { address: GUEST.ip, prefix: GUEST.prefix, gateway: GUEST.gatewayIp, mtu: GUEST.mtu },
    disks: {
      root: { device: 'vda', fstype: 'squashfs', ...(running.hasRootMounted && { mounted: true }) },
      scratch: { device: 'vdb', bytes: running.diskBytes.scratch },
      ...(spec.docker_data_mib === undefined
        ? {}
        : { docker: { device: 'vdc', bytes: running.diskBytes.docker } }),
    },
    ...((config.docker || spec.docker_data_mib !== undefined) && {
      docker: { start: config.docker === true && !namesEngine(argv) },
    }),
    ...(spec.object_stores && { stores: spec.object_stores.map(storeMount) }),
    ...(spec.volumes && {
      volumes: spec.volumes.map(({ mount_path: path }, index) => ({ tag: volumeTag(index), path })),
    }),
    ...(reservedMib !== undefined && { reserveBytes: reservedMib * 1024 * 1024 }),
    env: environmentOf(spec, config),
    ...(user === '' ? {} : { user }),
    ...(config.workingDir === '' ? {} : { workingDir: config.workingDir }),
    ...(argv.length === 0
      ? {}
      : { entrypoint: { argv, ...(config.stopSignal === '' ? {} : { stopSignal: config.stopSignal }) } }),
  };
}

/** By which a guest mounts a volume of its sandbox. */
export function volumeTag(index: number): string {
  return `volume-${index}`;
}

/** The mount of a store, through the host's proxy. */
export function storeMount(store: GuestStore): StoreMount {
  return { ...store, endpoint: `http://${GUEST.gatewayIp}:${GUEST.storesPort}` };
}

/** Whether the entrypoint itself runs the container engine: there is only one of them. */
function namesEngine(argv: readonly string[]): boolean {
  return argv.some((argument) => /\bdockerd\b/.test(argument));
}

/** Configuration with which a pooled VM warms up: everything that a sandbox has, and the shell of its image. */
export function warmUpConfig(running: RunningVm): GuestConfig {
  return {
    hostname: 'warm-up',
    machineId: '0'.repeat(32),
    entropy: randomBytes(64),
    dns: [GUEST.gatewayIp],
    network: { address: GUEST.ip, prefix: GUEST.prefix, gateway: GUEST.gatewayIp, mtu: GUEST.mtu },
    disks: {
      root: { device: 'vda', fstype: 'squashfs' },
      scratch: { device: 'vdb', bytes: running.diskBytes.scratch },
    },
    env: {},
    entrypoint: { argv: ['/bin/sh', '-c', ':'] },
  };
}

/** Names of a guest, which are the same for its whole life, and the root certificate that it trusts. */
export function identityOf(
  vmId: string,
  spec: SandboxSpec,
): { hostname: string; machineId: string; trust?: string } {
  return {
    hostname: hostname(spec.name, vmId),
    machineId: vmId.replaceAll('-', ''),
    ...(spec.egress_secrets && { trust: spec.egress_secrets.trust }),
  };
}

/** Time and random seed for each start and resume. */
export function freshness(): { clockNs: bigint; entropy: Uint8Array } {
  return {
    clockNs: nowNs(),
    // A restored guest has the random state of its source: without new seed all copies would generate the same numbers.
    entropy: randomBytes(64),
  };
}

/** Environment of the processes in the guest. */
export function environmentOf(spec: SandboxSpec, image: ImageConfig): Record<string, string> {
  return { ...image.env, ...spec.env };
}

/** Converts a display name to a host name: the characters that DNS allows, or the id if there are none. */
function hostname(name: string, vmId: string): string {
  const label = name
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, '-')
    .slice(0, HOSTNAME_MAX)
    .replaceAll(/^-+|-+$/g, '');
  return label === '' ? `sandbox-${vmId.slice(0, 8)}` : label;
}
