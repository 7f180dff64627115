// The size of the little Llama, which its button says before anything else of it is loaded.

export const englishMegabytes = 0.9;
