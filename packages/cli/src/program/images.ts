/** `rlp image`. */
import type { Registration } from './registration.ts';

export function imageCommands({ program, lazy }: Registration): void {
  const image = program
    .command('image')
    .alias('images')
    .summary('images of the project, and their builds')
    .description('Build, list and delete images. IMAGE is a name or an id.');
  image
    .command('ls', { isDefault: true })
    .description('List images, newest first.')
    .option('-q, --quiet', 'names only')
    .action(lazy(async () => (await import('../commands/images.ts')).listImages));
  image
    .command('build')
    .description(
      'Build an image from a Dockerfile and the folder with its files, print the log of the build on stderr, and then the ' +
        'id of the image. Files that .dockerignore names are not sent. An image of that name is replaced once the build ' +
        'has succeeded.',
    )
    .argument('[folder]', 'the build context', '.')
    .requiredOption('-t, --tag <name>', 'name of the image')
    .option('-f, --file <path>', 'the Dockerfile; - reads it from stdin (default: Dockerfile in the folder)')
    .option('--docker', 'prepare it to run Docker inside')
    .option('--region <region>', 'where it is to be at home')
    .option('-q, --quiet', 'do not print the log')
    .option('--no-wait', 'print the id as soon as the folder was sent')
    .action(lazy(async () => (await import('../commands/image-build.ts')).buildImage));
  image
    .command('create')
    .description('Make an image of a registry reference, or replace the one of that name.')
    .argument('<name>')
    .argument('<reference>', 'as in debian:12 or registry.example.com/app:1.0')
    .option('--docker', 'prepare it to run Docker inside')
    .option('--region <region>', 'where it is to be at home')
    .option('--no-wait', 'print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it is built (default: 30m)')
    .action(lazy(async () => (await import('../commands/images.ts')).createImage));
  image
    .command('logs')
    .description("Print the log of an image's newest build.")
    .argument('<image>')
    .option('-f, --follow', 'until the build ends')
    .action(lazy(async () => (await import('../commands/images.ts')).imageLogs));
  image
    .command('rm')
    .description('Delete images and cancel their builds. Sandboxes that were created from them continue.')
    .argument('<image...>')
    .option('-f, --force', 'those that do not exist are no error')
    .action(lazy(async () => (await import('../commands/images.ts')).removeImages));
  image
    .command('prune')
    .description(
      'Delete images whose build has failed and that were never built before. Asks before it deletes.',
    )
    .option('--unused', 'also those that no sandbox of the project was created from')
    .option('--dry-run', 'show what would be deleted')
    .option('-y, --yes', 'do not ask')
    .action(lazy(async () => (await import('../commands/image-prune.ts')).pruneImages));
}
