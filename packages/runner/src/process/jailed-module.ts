/**
 * The root file system of processes that handle untrusted input: Node.js with its libraries, the code of this service, what a resolver
 * of names and TLS need, and one folder of theirs. `hostd jail` makes it, and nothing else of the host is in it.
 */
import { existsSync, realpathSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { HOSTD } from '../host/hostd.ts';
import { programOf, PROGRAMS } from './program.ts';
import { run } from './run.ts';

export interface ModuleJailOptions {
  /** The one folder that it can write to, unless `extra` names others: `JAIL_FOLDER` inside. */
  folder: string;
  network: boolean;
  /** Largest file that it may write, bytes. */
  fileMax: number;
  /** More options of `hostd jail`. */
  extra?: readonly string[];
  /** Of the module. */
  args?: readonly string[];
  /** Most open files, and most threads of the user that it becomes. */
  filesMax?: number;
  threadsMax: number;
}

/** Where the command finds its folder. */
export const JAIL_FOLDER = '/vm';

/** A command in that root, and the environment that its program needs. */
export interface JailedCommand {
  program: string;
  args: string[];
  env: Record<string, string>;
}

const INSTALLATION = fileURLToPath(new URL('../../../../', import.meta.url));
/** The code of this service, and the libraries that it uses: what a program needs that is not bundled. */
const CODE = ['packages', 'node_modules'] as const;
const BUNDLES = '/programs';
const NODE = '/node';
/** Where they exist; resolv.conf is often a link to a file elsewhere. */
const NETWORK_FILES = ['resolv.conf', 'hosts', 'nsswitch.conf', 'gai.conf', 'host.conf'].map(
  (name) => `/etc/${name}`,
);
const CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt';
const FILES_MAX = 1024;
const LDD = /^\s*(?:\S+ => )?(\/\S+) \(0x[0-9a-f]+\)$/gm;

let libraries: Promise<string[]> | undefined;
/** The shared libraries of Node.js with their loader, by absolute path. */
async function librariesOfNode(): Promise<string[]> {
  libraries ??= run('ldd', [process.execPath]).then((text) =>
    [...text.matchAll(LDD)].map(([, file = '']) => file),
  );
  return await libraries;
}

/** The command that executes a module of this service. @param module absolute path */
export async function jailedModule(
  module: string,
  nodeOptions: readonly string[],
  options: ModuleJailOptions,
): Promise<JailedCommand> {
  const { folder, network, fileMax, extra = [], args = [] } = options;
  const files = await librariesOfNode();
  const program = programOf(module);
  const isBundled = program !== module;
  const certificates = process.env['SSL_CERT_FILE'] ?? CERTIFICATES;
  const read = [
    ...(isBundled ? [[PROGRAMS, BUNDLES]] : CODE.map((name) => [path.join(INSTALLATION, name), `/${name}`])),
    ...(network ? [...NETWORK_FILES, certificates].map((file) => [file, file]) : []),
  ].filter(([file = '']) => existsSync(file));
  const flags: [string, string | number][] = [
    ['folder', folder],
    ...read.map(([from, to]): [string, string] => ['read', `${from}=${to}`]),
    ['execute', `${realpathSync(process.execPath)}=${NODE}`],
    ...files.map((file): [string, string] => ['execute', `${file}=${file}`]),
    ['netns', network ? 'host' : 'new'],
    ['nofile', options.filesMax ?? FILES_MAX],
    ['fsize-kib', Math.ceil(fileMax / 1024)],
    ['nproc', options.threadsMax],
  ];
  const inside = isBundled
    ? path.join(BUNDLES, path.relative(PROGRAMS, program))
    : `/${path.relative(INSTALLATION, module)}`;
  return {
    program: HOSTD,
    args: [
      'jail',
      ...flags.flatMap(([name, value]) => [`--${name}`, String(value)]),
      '--confine',
      ...extra,
      '--',
      NODE,
      ...nodeOptions,
      inside,
      ...args,
    ],
    env: { LD_LIBRARY_PATH: [...new Set(files.map((file) => path.dirname(file)))].join(':') },
  };
}
