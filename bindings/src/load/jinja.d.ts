// In place of the declarations of @huggingface/jinja, an optional peer dependency, for the reason that tokenizers.d.ts states.

export const Template: new (template: string) => { render(items: object): string };
