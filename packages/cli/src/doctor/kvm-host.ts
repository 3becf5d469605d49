/** Settings of a host that decide how well guests run under KVM on it. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Check } from './check.ts';

/** Longest polling of an idle virtual CPU that many sandboxes on a host go well with, in nanoseconds. */
const HALT_POLL_NS = 50_000;

export interface KvmHostPlaces {
  device: string;
  /** Folder of the kernel's modules. */
  modules: string;
  cpuinfo: string;
}

const PLACES: KvmHostPlaces = { device: '/dev/kvm', modules: '/sys/module', cpuinfo: '/proc/cpuinfo' };

/**
 * Guests do not have the processor's extensions for virtualisation, but a VMM that was taken over may ask the kernel for them.
 */
function checkNesting(modules: string): Check[] {
  const enabled = ['kvm_intel', 'kvm_amd'].filter((name) =>
    /^[Y1]/.test(readText(join(modules, name, 'parameters/nested')) ?? ''),
  );
  return enabled.map((name) => ({
    id: 'nesting',
    title: 'Nesting',
    status: 'warn',
    detail:
      `${name} allows nested virtualisation (nested=1), which no sandbox has and a VMM that was taken over could use: ` +
      `put "options ${name} nested=0" into /etc/modprobe.d/releap.conf and load the module again`,
  }));
}

/** Nothing where there is no KVM. */
export function checkKvmHost({ device, modules, cpuinfo }: KvmHostPlaces = PLACES): Check[] {
  if (!existsSync(device)) return [];
  const parameter = (name: string): string | undefined =>
    readText(join(modules, 'kvm', 'parameters', name))?.trim();
  const haltPoll = parameter('halt_poll_ns');
  const facts = ['halt_poll_ns', 'nx_huge_pages'].flatMap((name) => {
    const value = parameter(name);
    return value === undefined ? [] : [`kvm.${name}=${value}`];
  });
  const polls = Number(haltPoll ?? 0) > HALT_POLL_NS;
  const advice = polls
    ? '; an idle virtual CPU keeps its core busy so long after each halt: with many sandboxes, put ' +
      `"options kvm halt_poll_ns=${HALT_POLL_NS}" into /etc/modprobe.d/releap.conf`
    : '';
  const checks: Check[] = [
    {
      id: 'kvm-settings',
      title: 'KVM settings',
      status: 'ok',
      detail: `${facts.length === 0 ? 'not readable' : facts.join(', ')}${advice}`,
    },
  ];
  if (/^flags\s*:.*\bhypervisor\b/m.test(readText(cpuinfo) ?? ''))
    checks.push({
      id: 'virtualised-host',
      title: 'Virtualised',
      status: 'warn',
      detail:
        'this host is a virtual machine itself: its KVM is nested, where page faults and exits of guests cost several times more ' +
        'than on hardware. Sandboxes work; no figure of the documentation holds here',
    });
  return [...checks, ...checkNesting(modules)];
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
