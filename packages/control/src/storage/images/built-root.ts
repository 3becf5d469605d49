/** SQL of what the builds of images have made. */

/** Whether what a build of it makes is on its host alone: from a Dockerfile, or prepared for Docker. Otherwise a registry has it. */
export const IS_MADE = (image: string): string =>
  `(${image}.source ->> 'type' = 'dockerfile' or ${image}.docker)`;

/**
 * The source of what the newest successful build of an image has made: exactly that, by its digest. During a rebuild, and
 * after one that failed, it is that of the build before. Null when nothing was built yet.
 */
export const BUILT_ROOT = (image: string): string =>
  `case when ${image}.manifest_name is null then null
        when ${image}.status <> 'ready' then ${image}.previous_root
        when ${IS_MADE(image)} then jsonb_build_object('type', 'stored', 'digest', ${image}.manifest_name)
        when ${image}.source ->> 'type' = 'registry'
          then ${image}.source || jsonb_build_object('digest', ${image}.manifest_name)
        else ${image}.source end`;
