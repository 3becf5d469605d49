/** `rlp images`. */
import type { Registration } from './registration.ts';

export function imageCommands({ program, context, finish }: Registration): void {
  const images = program.command('images').description('List and create images.');
  images
    .command('ls', { isDefault: true })
    .description('List images, newest first.')
    .action(async () => {
      const { listImages } = await import('../commands/images.ts');
      await finish(listImages(context()));
    });
  images
    .command('create')
    .description('Make an image of a registry reference, or replace the one of that name.')
    .argument('<name>')
    .argument('<reference>', 'as in debian:12 or registry.example.com/app:1.0')
    .option('--docker', 'it is to run Docker inside')
    .option('--region <region>', 'where it is to be at home')
    .option('--no-wait', 'print the id at once')
    .option('--wait-timeout <duration>', 'how long to wait until it is built (default: 30m)')
    .action(async (name: string, reference: string, options) => {
      const { createImage } = await import('../commands/images.ts');
      await finish(createImage(context(), name, reference, options));
    });
}
