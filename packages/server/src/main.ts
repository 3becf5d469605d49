/**
 * The `releap` process. `releap` or `releap all` runs the whole service on this machine; `releap control`,
 * `releap runner` and `releap gateway` run one part of it. `releap join`, `releap migrate`, `releap backup`, `releap restore`,
 * `releap rotate-key` and `releap rotate-token` do their work and end.
 */
import { writeFileSync } from 'node:fs';
import { assertRestored } from './backup/restore-marker.ts';
import { ConfigError, loadConfig } from './config/config.ts';
import { assertEncrypted } from './config/plain-http.ts';
import { withSettings } from './config/settings-file.ts';
import { explain } from './roles/run-role.ts';

const USAGE = `usage: releap [all | control | runner | gateway | join TOKEN | migrate | backup | restore | rotate-key [--promote] | rotate-token KIND]

  all       the whole service on this machine (the default)
  control   the control plane: REST API and scheduler; needs DATABASE_URL
  runner    the host agent of one machine; needs RELEAP_CONTROL_URL
  gateway   what reaches sandboxes from outside; needs RELEAP_CONTROL_URL
  join TOKEN [--data-host ADDRESS | --data-url URL] [--name NAME] [--region ID]
            make this machine a host of a deployment; the runner is started afterwards
  migrate   bring the schema of DATABASE_URL to this version; for control servers with
            RELEAP_MIGRATIONS=wait, which wait for it
  backup FILE (--passphrase-file FILE | --plain) [--with-store]
            write database, keys and tokens into one file, or with - to standard output,
            also while the service runs. RELEAP_BACKUP_PASSPHRASE is another way to give
            the passphrase. --with-store: also images, snapshots and commits of volumes
  restore FILE [--passphrase-file FILE] [--force]
            bring them back into an empty RELEAP_HOME, or with DATABASE_URL into an empty
            database, and list what is lost. --force moves aside what is in the way
  rotate-key
            add a key to RELEAP_KEY_FILE, which decrypts and does not encrypt yet:
            copy the file to all control servers
  rotate-key --promote
            let the added key encrypt from then on; servers that run re-encrypt what
            is there. Copy the file to all control servers again
  rotate-token operator | metrics | gateway | join
            replace a token in RELEAP_HOME; the one before opens nothing any more

Configuration is by environment variables: docs/configuration.md`;

/** See oom_score_adj in proc(5): from -1000 (never) to 1000 (first). */
const SERVICE_OOM_SCORE_ADJ = -900;
/** Where Debian keeps tools for root, which not every root has in its PATH. */
const TOOL_FOLDERS = ['/usr/local/sbin', '/usr/sbin', '/sbin', '/usr/bin', '/bin'];

function completePath(): void {
  const folders = (process.env['PATH'] ?? '').split(':').filter((folder) => folder !== '');
  process.env['PATH'] = [...folders, ...TOOL_FOLDERS.filter((folder) => !folders.includes(folder))].join(':');
}

/**
 * A host without memory ends what can be begun again first: micro-VMs (which the runner marks), and last the service with its
 * database. Processes that the service starts have the same. Not every user may do this; then all are equal.
 */
function keepFromOomKiller(): void {
  try {
    writeFileSync('/proc/self/oom_score_adj', String(SERVICE_OOM_SCORE_ADJ));
  } catch {
    // Without root, or in a container that does not allow it.
  }
}

/** Each role loads what it needs and nothing else: a gateway has no use for the control plane's libraries. */
async function main(args: readonly string[]): Promise<number | undefined> {
  const supervised = args.includes('--supervised');
  const [role = 'all', ...rest] = args.filter((arg) => arg !== '--supervised');
  if (role === 'migrate' && rest.length === 0)
    return await (await import('./migrate-command.ts')).migrateDatabase(loadConfig(process.env));
  if (role === 'join') {
    completePath();
    return await (await import('./join/join-command.ts')).joinCommand(rest, process.env);
  }
  if (role === 'backup')
    return (
      (await (await import('./backup/backup-command.ts')).backup(loadConfig(process.env), rest)) ?? usage()
    );
  if (role === 'restore')
    return (
      (await (await import('./backup/restore-command.ts')).restore(loadConfig(process.env), rest)) ?? usage()
    );
  if (role === 'rotate-token') return await rotate(rest);
  if (role === 'rotate-key') return await rotateKey(rest);
  if (rest.length > 0 || !['all', 'control', 'runner', 'gateway'].includes(role)) {
    const asked = ['-h', '--help', 'help'].includes(role);
    process[asked ? 'stdout' : 'stderr'].write(`${USAGE}\n`);
    return asked ? 0 : 2;
  }
  completePath();
  keepFromOomKiller();
  const config = loadConfig(role === 'runner' && !supervised ? withSettings(process.env) : process.env);
  await assertRestored(config);
  if (role === 'all' || role === 'control' || role === 'gateway') assertEncrypted(config, role);
  if (role === 'all') return await (await import('./supervisor/supervisor.ts')).runAll(config);
  const { runRole } = await import('./roles/run-role.ts');
  if (role === 'control')
    await runRole(role, config, supervised, (await import('./roles/control.ts')).controlRole);
  else if (role === 'runner')
    await runRole(role, config, supervised, (await import('./roles/runner.ts')).runnerRole);
  else await runRole(role, config, supervised, (await import('./roles/gateway.ts')).gatewayRole);
  return undefined;
}

function usage(): number {
  process.stderr.write(`${USAGE}\n`);
  return 2;
}

async function rotateKey(args: readonly string[]): Promise<number> {
  const isPromotion = args[0] === '--promote';
  if (args.length > (isPromotion ? 1 : 0)) return usage();
  const { keyFile } = loadConfig(process.env);
  const { addKey, promoteKey } = await import('@releap/control');
  process.stdout.write(
    isPromotion
      ? `key ${await promoteKey(keyFile)} of ${keyFile} encrypts from now on: copy the file to all control servers\n`
      : `added key ${await addKey(keyFile)} to ${keyFile}: copy the file to all control servers, and then run rotate-key --promote\n`,
  );
  return 0;
}

async function rotate(args: readonly string[]): Promise<number> {
  const { rotateToken, TOKEN_KINDS } = await import('./tokens.ts');
  const kind = TOKEN_KINDS.find((one) => one === args[0]);
  if (kind === undefined || args.length !== 1) return usage();
  process.stdout.write(`replaced the token in ${await rotateToken(loadConfig(process.env), kind)}\n`);
  return 0;
}

try {
  const code = await main(process.argv.slice(2));
  if (code !== undefined) process.exitCode = code;
} catch (error) {
  const message = error instanceof SyntaxError || error instanceof TypeError ? error.stack : explain(error);
  process.stderr.write(`\nreleap: ${message}\n`);
  process.exitCode = error instanceof ConfigError ? 2 : 1;
}
