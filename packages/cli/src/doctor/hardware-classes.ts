/** What the hardware of this machine is, for the choice of its classes. Figures are read or measured here; nothing is guessed. */
import { readdirSync, readFileSync, realpathSync, existsSync } from 'node:fs';
import { mkdtemp, open, rm, stat } from 'node:fs/promises';
import { cpus } from 'node:os';
import { basename, dirname, join } from 'node:path';
import type { Check } from './check.ts';
import { nearestFolder } from './storage.ts';

const WRITE_BYTES = 4096;
const MOST_WRITES = 500;
const MOST_MS = 1_000;

export async function checkHardwareClasses(
  home: string,
  env: Readonly<Record<string, string | undefined>>,
  sys = '/sys',
): Promise<Check> {
  const folder = await nearestFolder(home);
  const parts = [
    described('RELEAP_CPU_TYPE', env, cpus()[0]?.model.trim() || 'processor not known'),
    described('RELEAP_NETWORK_CLASS', env, networkText(sys)),
    described('RELEAP_DISK_CLASS', env, await diskText(folder, sys)),
  ];
  return {
    id: 'hardware-classes',
    title: 'Hardware classes',
    status: 'ok',
    detail: `${parts.join('; ')}. Declare the classes that the operator has defined for such hardware (rlp class)`,
  };
}

function described(
  variable: string,
  env: Readonly<Record<string, string | undefined>>,
  what: string,
): string {
  return `${variable} ${env[variable] || 'not set'}: ${what}`;
}

/** The fastest link of a network card; virtual interfaces have none. */
export function networkText(sys: string): string {
  const folder = join(sys, 'class/net');
  const links = (existsSync(folder) ? readdirSync(folder) : [])
    .filter((name) => existsSync(join(folder, name, 'device')))
    .map((name) => ({ name, mbit: Number(readText(join(folder, name, 'speed'))) }))
    .filter(({ mbit }) => mbit > 0)
    .toSorted((a, b) => b.mbit - a.mbit);
  const [fastest] = links;
  return fastest === undefined ? 'link speed not known' : `${fastest.name} at ${fastest.mbit} Mbit/s`;
}

async function diskText(folder: string, sys: string): Promise<string> {
  const kind = diskKind((await stat(folder)).dev, sys);
  const ms = await syncedWriteMs(folder).catch(() => undefined);
  const measured =
    ms === undefined ? 'not measured' : `a synced write of 4 KiB takes ${ms.toFixed(2)} ms (median)`;
  return `${kind}, ${measured}`;
}

/** @param dev of stat(2) */
export function diskKind(dev: number, sys: string): string {
  // As the macros of glibc.
  const major = (dev >>> 8) & 0xfff;
  const minor = (dev & 0xff) | ((dev >>> 12) & 0xfff00);
  let device: string;
  try {
    device = realpathSync(join(sys, 'dev/block', `${major}:${minor}`));
  } catch {
    return 'disk not known';
  }
  // A partition is a folder of its disk.
  if (!existsSync(join(device, 'queue'))) device = dirname(device);
  const name = basename(device);
  if (name.startsWith('nvme')) return `NVMe disk ${name}`;
  // Of a virtual machine: what is behind it, and whether that rotates, is not known here.
  if (/^x?vd[a-z]/.test(name)) return `virtual disk ${name}`;
  const rotational = readText(join(device, 'queue/rotational')).trim();
  if (rotational === '') return `disk ${name}`;
  return rotational === '1' ? `rotating disk ${name}` : `disk ${name} without rotation`;
}

/** Median time of a write that is on the disk when it returns. */
async function syncedWriteMs(folder: string): Promise<number> {
  const trial = await mkdtemp(join(folder, '.rlp-doctor-'));
  try {
    await using file = await open(join(trial, 'writes'), 'w');
    const block = Buffer.alloc(WRITE_BYTES, 1);
    const times: number[] = [];
    const until = performance.now() + MOST_MS;
    while (times.length < MOST_WRITES && (times.length === 0 || performance.now() < until)) {
      const began = performance.now();
      await file.write(block, 0, block.length, times.length * WRITE_BYTES);
      await file.datasync();
      times.push(performance.now() - began);
    }
    return times.toSorted((a, b) => a - b)[times.length >> 1] ?? 0;
  } finally {
    await rm(trial, { recursive: true, force: true });
  }
}

/** Empty for one that cannot be read, as the speed of a link that is down. */
function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
