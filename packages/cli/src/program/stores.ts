/** `rlp store`. */
import { Option } from 'commander';
import type { Registration } from './registration.ts';

export function storeCommands({ program, lazy }: Registration): void {
  const store = program
    .command('store')
    .summary('buckets of S3-compatible services, to mount')
    .description(
      'Object stores: buckets of S3-compatible services, whose credentials are secrets of the project.',
    );
  store
    .command('add')
    .description('Add an object store. Its credentials must be secrets already: see rlp secret set.')
    .argument('<name>', 'unique in the project')
    .requiredOption('-b, --bucket <bucket>', 'the bucket')
    .requiredOption('--access-key-secret <secret>', 'name of the secret that holds the access key id')
    .requiredOption('--secret-key-secret <secret>', 'name of the secret that holds the secret access key')
    .option('--session-token-secret <secret>', 'name of the secret that holds a session token (STS)')
    .option('--endpoint <url>', 'http:// or https:// URL of the service (default: AWS)')
    .option('--region <region>', 'as in us-east-1')
    .option('--prefix <prefix>', 'only objects below this prefix of their keys')
    .option('--path-style', 'address the bucket in the path, as MinIO and its like need')
    .option('--read-only', 'mount it read-only, unless a mount says otherwise')
    .addOption(
      new Option('--provider <provider>', 'which service it is').choices([
        'AWS',
        'Minio',
        'Ceph',
        'Cloudflare',
        'Other',
      ]),
    )
    .option('--dir-cache <duration>', 'how long mounts keep the list of a folder, as in 30s')
    .action(lazy(async () => (await import('../commands/stores.ts')).addStore));
  store
    .command('ls', { isDefault: true })
    .description('List object stores, newest first.')
    .option('-a, --all', 'deleted ones too')
    .action(lazy(async () => (await import('../commands/stores.ts')).listStores));
  store
    .command('rm')
    .description('Delete object stores. Their buckets and the secrets with their credentials stay.')
    .argument('<store...>', 'names or ids')
    .action(lazy(async () => (await import('../commands/stores.ts')).removeStores));
  store
    .command('mount')
    .description(
      'Mount an object store in a sandbox that runs. It is mounted again whenever the sandbox starts.',
    )
    .argument('<vm>')
    .argument('<store:path[:ro|:rw]>', 'as in models:/mnt/models')
    .action(lazy(async () => (await import('../commands/stores.ts')).mountStore));
  store
    .command('mounts')
    .description('List the object stores that a sandbox has mounted, or mounts when it starts.')
    .argument('<vm>')
    .action(lazy(async () => (await import('../commands/stores.ts')).listMounts));
  store
    .command('unmount')
    .description('Unmount an object store in a sandbox that runs. What was written is uploaded before.')
    .argument('<vm>')
    .argument('<store>', 'name or id')
    .action(lazy(async () => (await import('../commands/stores.ts')).unmountStore));
}
